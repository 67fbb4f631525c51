// A logical process as the engine sees it, and its history.
//
// Owner:     the engine's thread that the LP is placed on.
// Callers:   that thread only.
// Never:     touched by other threads while the simulation runs.
//
// An LP is one block: the engine's part, then its state, from a cache line on.
#pragma once

#include "ckpt_timewarp.h"
#include "timewarp/engine/event.h"

namespace ckpt::timewarp {

// Who executes an LP's events: takes what its handlers ask for.
class Executor {
 public:
  virtual void send(struct Lp& lp, uint32_t to, double delay, const void* message, size_t bytes) = 0;
  virtual void save(struct Lp& lp, const void* at, size_t bytes) = 0;
  virtual void resize(struct Lp& lp, size_t bytes) = 0;
  virtual uint64_t* bits(struct Lp& lp) = 0;
  virtual void fail(struct Lp& lp, const char* what) = 0;
  virtual void* context() const = 0;

 protected:
  ~Executor() = default;
};

// Stores what cannot be had from the records of single events (state/state_saver.h).
struct LpHistory;

struct alignas(64) Lp : ckpt_tw_lp {
  uint64_t sent;  // messages so far
  uint64_t tail;  // position of the record of the last executed event; below the history's head: none
  Executor* executor;
  LpHistory* history;
  uint32_t state_bytes;  // used
  uint8_t way;           // ckpt_tw_way
  uint8_t check;         // REVERSE
  uint16_t every;        // COPY; 0: adapted

  std::byte* state() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(Lp) == 64);

// The engine's part and the beginning of the state.
inline void prefetch_lp(Lp& lp) {
  __builtin_prefetch(&lp, 1);
  __builtin_prefetch(lp.state(), 1);
}

// What undoing an executed event takes. Lives from the execution until the event is final or undone.
struct Record {
  Event* event;
  uint64_t previous;  // position of the record of the LP's event before
  Event* first_sent;
  uint64_t random, sent;  // of the LP, before the event
  void* saved;            // COPY, CCL: the state before; INCREMENTAL: the bytes overwritten; or nullptr
  uint64_t bits;          // for the inverse
  uint32_t state_bytes;   // before the event
  uint16_t from;          // event->from
  uint16_t plain;         // nothing of the LP is needed to drop it
};
static_assert(sizeof(Record) == 64);

}  // namespace ckpt::timewarp
