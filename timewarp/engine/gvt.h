// Global virtual time: the key below which nothing can change any more. Two cuts (Mattern 1993), through
// shared memory, nobody stops.
//
// Owner:     the simulation.
// Callers:   each thread of the engine through its own GvtParty, between two events.
// Never:     waits. A party that is late delays the round, not the others' work.
//
// A round, for each thread:
//   idle ──round() > mine──► flush what was sent; begin to note the smallest key sent; ack ──► acked
//   acked ──all have acked──► empty all channels, report min(queue, noted) ──► reported
//   reported ──all have reported──► GVT = the smallest report ──► idle
//
// Why no event below the result exists or can come into being (the key of a cancellation counts as that of an
// event):
//  1. A message sent before its sender's ack was flushed before it. The receiver empties its channels after
//  it has
//     seen that ack (release in ack(), acquire in all_acked()), so the message is in its queue, or has been
//     executed, when it reports.
//  2. A message sent between its sender's ack and its sender's report was noted, and is in the sender's
//  report.
//  3. A message sent after its sender's report was caused by an event executed after it. That event was in
//  the queue
//     at the report, or came later; by induction over the order in real time its key is not below the result,
//     and a message's key is above that of its cause. A cancellation sent after the report comes from a
//     rollback, whose cause is a straggler or a cancellation with a key not below the result, and which
//     undoes events above only.
// A thread may note too much or report too early in the queue's disfavour (a cancelled event that is still in
// the queue counts): the result is then too small, never too large.
//
// The next round cannot disturb the reading of reports: a thread acks it only after it has read all reports
// of this one, and nobody writes its report before all have acked.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "timewarp/engine/event.h"

namespace ckpt::timewarp {

class Gvt {
 public:
  explicit Gvt(unsigned threads) : slots_(threads) {}

  unsigned threads() const { return static_cast<unsigned>(slots_.size()); }
  uint64_t round() const { return round_.load(std::memory_order_acquire); }
  // Begins the round after `last`, unless somebody has.
  void begin(uint64_t last) { round_.compare_exchange_strong(last, last + 1, std::memory_order_acq_rel); }

  // release: what was flushed before is visible to whoever sees the ack.
  void ack(unsigned thread, uint64_t round) { slots_[thread].acked.store(round, std::memory_order_release); }
  bool all_acked(uint64_t round) const {
    for (const Slot& s : slots_) {
      if (s.acked.load(std::memory_order_acquire) < round) return false;
    }
    return true;
  }
  // release: the report is written before its round.
  void report(unsigned thread, uint64_t round, const Key& key) {
    slots_[thread].report = key;
    slots_[thread].reported.store(round, std::memory_order_release);
  }
  // False: not all have reported.
  bool result(uint64_t round, Key* gvt) const {
    for (const Slot& s : slots_) {
      if (s.reported.load(std::memory_order_acquire) < round) return false;
    }
    Key min = Key::never();
    for (const Slot& s : slots_) {
      if (s.report < min) min = s.report;
    }
    *gvt = min;
    return true;
  }

 private:
  struct alignas(128) Slot {
    std::atomic<uint64_t> acked{0}, reported{0};
    Key report;
  };
  alignas(128) std::atomic<uint64_t> round_{0};
  std::vector<Slot> slots_;
};

// One thread's part in it.
class GvtParty {
 public:
  GvtParty(Gvt& gvt, unsigned thread) : gvt_(gvt), thread_(thread) {}

  // A message or a cancellation leaves for another thread.
  void note(const Key& key) {
    if (noting_ && key < noted_) noted_ = key;
  }
  bool noting() const { return noting_; }
  void ask() {
    if (state_ == State::kIdle) gvt_.begin(done_);
  }
  bool idle() const { return state_ == State::kIdle; }

  // One look. flush() -> bool: all that was sent is in the channels. settle() -> Key: empties all channels,
  // handles what was in them, and returns the smallest key that is left. True: *gvt is new.
  template <typename Flush, typename Settle>
  bool poll(Flush flush, Settle settle, Key* gvt) {
    if (state_ == State::kIdle) {
      if (gvt_.round() == done_ || !flush()) return false;
      noting_ = true;
      noted_ = Key::never();
      gvt_.ack(thread_, done_ + 1);
      state_ = State::kAcked;
    }
    if (state_ == State::kAcked) {
      if (!gvt_.all_acked(done_ + 1)) return false;
      Key report = settle();
      // After settle(): what it rolls back may send cancellations.
      if (noted_ < report) report = noted_;
      noting_ = false;
      gvt_.report(thread_, done_ + 1, report);
      state_ = State::kReported;
    }
    if (!gvt_.result(done_ + 1, gvt)) return false;
    ++done_;
    state_ = State::kIdle;
    return true;
  }
  uint64_t rounds() const { return done_; }

 private:
  enum class State { kIdle, kAcked, kReported };

  Gvt& gvt_;
  const unsigned thread_;
  State state_ = State::kIdle;
  uint64_t done_ = 0;
  bool noting_ = false;
  Key noted_;
};

}  // namespace ckpt::timewarp
