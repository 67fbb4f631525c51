// Messages from one thread to another: a ring that one thread fills and one empties, in order.
//
// Owner:     the simulation; one for each ordered pair of threads.
// Callers:   push(), flush(), unsent(): the sending thread. drain(): the receiving thread.
// Never:     loses the order: a cancellation comes after the message it cancels. Never waits: what does not
//            fit stays with the sender until a later flush().
//
// The ring holds the time beside the pointer, so that the receiver can file an event without touching it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "timewarp/engine/event.h"

namespace ckpt::timewarp {

class Channel {
 public:
  void push(double time, Event* event, bool cancel) {
    const Slot slot{time, reinterpret_cast<uintptr_t>(event) | (cancel ? 1 : 0)};
    if (overflow_.empty() && fits()) [[likely]] {
      slots_[filled_++ & kMask] = slot;
    } else {
      overflow_.push_back(slot);
    }
  }
  // Makes all that fits visible. True: nothing is left behind.
  bool flush() {
    while (!overflow_.empty() && fits()) {
      slots_[filled_++ & kMask] = overflow_.front();
      overflow_.pop_front();
    }
    // release: whoever sees the count sees the slots, and the events they point to.
    if (filled_ != published_) {
      published_ = filled_;
      tail_.store(filled_, std::memory_order_release);
    }
    return overflow_.empty();
  }
  // Calls take(time, event, cancel) for each message that was flushed.
  template <typename Take>
  size_t drain(Take take) {
    // acquire: pairs with flush().
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    const size_t n = tail - taken_;
    if (n == 0) return 0;
    for (; taken_ != tail; ++taken_) {
      const Slot slot = slots_[taken_ & kMask];
      take(slot.time, reinterpret_cast<Event*>(slot.word & ~uintptr_t{1}), (slot.word & 1) != 0);
    }
    // release: the sender may overwrite the slots only after we have read them.
    head_.store(taken_, std::memory_order_release);
    return n;
  }

 private:
  static constexpr size_t kSlots = 4096, kMask = kSlots - 1;
  struct Slot {
    double time;
    uintptr_t word;
  };

  bool fits() {
    if (filled_ - known_head_ < kSlots) return true;
    known_head_ = head_.load(std::memory_order_acquire);  // pairs with drain()
    return filled_ - known_head_ < kSlots;
  }

  // The sender's.
  alignas(128) uint64_t filled_ = 0;
  uint64_t published_ = 0, known_head_ = 0;
  std::deque<Slot> overflow_;
  alignas(128) std::atomic<uint64_t> tail_{0};
  // The receiver's.
  alignas(128) uint64_t taken_ = 0;
  alignas(128) std::atomic<uint64_t> head_{0};
  alignas(128) std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

}  // namespace ckpt::timewarp
