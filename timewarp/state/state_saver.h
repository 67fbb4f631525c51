// Ways to go back: saves what an event will change, and brings it back.
//
// Owner:     a thread of the optimistic engine; one state saver for all its LPs.
// Callers:   that thread only.
// Never:     decides when to go back (engine/worker.h does).
//
// For one event, in this order:
//   before()   the event is about to be executed
//   changing() INCREMENTAL: it is about to overwrite some bytes
//   after()    it has been executed
// and then either
//   final()    nothing before GVT is undone: what was saved for it is given back, at once or when a later copy
//   makes it
//              useless; true: the state saver still needs the record and its event and will hand them to
//              `drop`
// or, going back from an LP's newest event to the first that is undone,
//   undo()     one event, newest first
//   restore()  once: the state is brought to where it was before `first`
//
// Copies before each event need nothing else. With copies before some events (COPY with every != 1, CCL)
// restoring means: take the newest copy at or before the wanted place, and execute the events in between once
// more without sending (coasting forward). So an LP holds the records from its newest final copy on
// (LpHistory::since_copy).
#pragma once

#include <cstring>
#include <vector>

#include "timewarp/engine/lp.h"
#include "timewarp/engine/memory.h"
#include "timewarp/engine/setup.h"
#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

// What the state saver asks of the engine's thread.
class History {
 public:
  // The record at a position, or nullptr if there is none any more.
  virtual Record* record_at(uint64_t position) = 0;
  // Executes an event of the LP once more: messages are counted, not sent.
  virtual void repeat(Lp& lp, Record& record) = 0;
  // The state saver is through with a final record.
  virtual void drop(Record& record) = 0;

 protected:
  ~History() = default;
};

struct LpHistory {
  std::vector<Record*> since_copy;  // final, oldest first; the first has a copy
  uint32_t since = 0;               // events executed since the last copy
  bool has_copy = false;
  NonBlockingCopy copy;  // CCL: of the state after the last event
};

struct StateCounters {
  uint64_t saves = 0, save_bytes = 0, restores = 0, repeated = 0;
  uint64_t copies_committed = 0, copies_aborted = 0, copies_finished = 0, copies_forced = 0;
};

class StateSaver {
 public:
  StateSaver(Setup& setup, History& history, Regions& regions);
  ~StateSaver();

  // False: the LP cannot go back in the way that is wanted, and the simulation has failed.
  [[nodiscard]] bool open(Lp& lp);
  void close(Lp& lp);

  void before(Lp& lp, Record& record) {
    record.state_bytes = lp.state_bytes;
    if (lp.way == CKPT_TW_COPY && lp.every == 1) [[likely]] {
      record.plain = 1;
      return copy_state(lp, record);
    }
    record.saved = nullptr;
    record.plain = lp.history == nullptr && lp.way != CKPT_TW_INCREMENTAL;
    if (lp.way != CKPT_TW_REVERSE || lp.check != 0) {
      before_slow(lp, record);
    }
  }
  void changing(Lp& lp, Record& record, const void* at, size_t bytes);
  void after(Lp& lp, Record& record) {
    if (lp.way == CKPT_TW_CCL || lp.check != 0) [[unlikely]]
      after_slow(lp, record);
  }
  // Records whose `plain` is set: without looking at the LP.
  void final_plain(Record& record) {
    if (pooled_ && record.saved != nullptr) copies_.give(record.saved);
  }
  bool final(Lp& lp, Record& record) {
    if (lp.history != nullptr) return final_slow(lp, record);
    release(lp, record);
    return false;
  }
  void undo(Lp& lp, Record& record);
  void restore(Lp& lp, Record& first);
  // Gives back what the record holds, undone or final.
  void release(Lp& lp, Record& record) {
    if (record.saved == nullptr) return;
    if (lp.way == CKPT_TW_INCREMENTAL) return release_pieces(record);
    if (pooled_) copies_.give(record.saved);
    record.saved = nullptr;
  }

  // How often events are undone, and what saving and executing cost, for COPY with every = 0.
  void adapt(uint64_t executed, uint64_t rollbacks, double event_cycles);
  uint32_t adapted() const { return adapted_; }
  // CCL: gives the emulated device the time it needs; nullptr if no LP goes back that way.
  NonBlocking* non_blocking() { return non_blocking_.get(); }

  const StateCounters& counters() const { return counters_; }
  uint64_t free_bytes() const {
    return copies_.free_blocks() * copies_.block_bytes() + pieces_.free_blocks() * kPieces;
  }
  // A handler has not repeated what it did, or its inverse does not invert.
  bool complained() const { return !complaint_.empty(); }
  std::string take_complaint() { return std::move(complaint_); }

 private:
  // INCREMENTAL: bytes overwritten, one after another, each followed by where and how many.
  static constexpr size_t kPieces = 256;
  struct Pieces {
    Pieces* older;
    uint32_t used, spare;
    std::byte bytes[kPieces - 16];
  };

  void* copy_block(Record& record) {
    if (setup_.copy_behind_record) return &record + 1;
    return setup_.colocated_at != 0 ? reinterpret_cast<std::byte*>(record.event) + setup_.colocated_at
                                    : copies_.take();
  }
  // Whole cache lines, which state and copy consist of: shorter than a call of memcpy() for a small state.
  static void copy_lines(std::byte* to, const std::byte* from, size_t bytes) {
    constexpr size_t kLine = 64, kSmall = 512;
    if (bytes > kSmall) {
      std::memcpy(to, from, bytes);
      return;
    }
    for (size_t at = 0; at < bytes; at += kLine) __builtin_memcpy(to + at, from + at, kLine);
  }
  void copy_state(Lp& lp, Record& record) {
    record.saved = copy_block(record);
    copy_lines(static_cast<std::byte*>(record.saved), lp.state(), lp.state_bytes);
    ++counters_.saves;
    counters_.save_bytes += lp.state_bytes;
  }
  void before_slow(Lp& lp, Record& record);
  void after_slow(Lp& lp, Record& record);
  bool final_slow(Lp& lp, Record& record);
  void release_pieces(Record& record);
  void undo_pieces(Lp& lp, Record& record);
  void settle_copy(Lp& lp, Record& record);
  void restore_slow(Lp& lp, Record& first);
  static void load(Lp& lp, const Record& record);
  static void set_size(Lp& lp, uint32_t bytes);

  Setup& setup_;
  History& history_;
  const bool pooled_;  // copies are blocks of copies_
  Pool copies_, pieces_;
  std::unique_ptr<NonBlocking> non_blocking_;
  std::vector<Record*> way_back_;
  uint32_t adapted_ = 1;
  double save_cycles_ = 0;
  uint64_t executed_ = 0, rollbacks_ = 0;
  StateCounters counters_;
  std::string complaint_;
};

}  // namespace ckpt::timewarp
