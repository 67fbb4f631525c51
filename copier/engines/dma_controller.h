// An emulated DMA controller that walks chains of control blocks on its own, modelled on that of the
// LANai 9 (Santoro and Quaglia, CCL v3.0, section 3.1).
//
// Owner:     copier (DmaCopyEngine programs it).
// Callers:   trigger(): any thread. run() or run_until(): the device's thread, one at a time.
// Never:     touches the program's memory but through SourceMemory.
//
// Four channels, each a chain. The device executes the next block of the channel with the lowest number
// among those that are awake: strict priority, from block to block. A channel goes to sleep at a terminal
// block (its terminal bit set, or no next block) without executing it, and stays there until it is
// triggered again; triggering a channel that is awake does no harm. A block that was executed gets its
// terminal bit set by the device. A block of length 0 is passed over.
//
// Two additions of ours. A block passed over gets its terminal bit as well: in a chain that is a circle
// it would be passed over again and again. And the device latches a length before it executes the block
// (kLatched), so that a thread that sets it to 0 learns whether that came in time.
//
//   programmer: length, card, host ──► clear terminal (release) ──► trigger()
//   device:     next (acquire): not terminal ──► latch length ──► copy ──► set terminal (release)
#pragma once

#include "base/locks/futex.h"
#include "base/memory/arena.h"
#include "copier/engines/copy_engine.h"

namespace ckpt {

struct alignas(32) ControlBlock {
  static constexpr uint64_t kToCard = 1;  // direction: 1 program memory to card, 0 card to buffer
  static constexpr uint64_t kTerminal = 2;
  static constexpr uint64_t kFlags = 31;
  static constexpr uint32_t kLatched = 1u << 31;

  std::atomic<uint64_t> next{kTerminal};  // address of the next block, and flags
  std::atomic<uint32_t> length{0};        // bytes; kLatched: the device has begun
  uint32_t card = 0;                      // offset in the card's memory
  uint64_t host = 0;                      // address outside of the card
  uint32_t readable = 1;                  // for SourceMemory::read
  uint32_t bytes = 0;  // the programmer's, not read by the device: the length as it was set

  static ControlBlock* next_of(uint64_t word) { return reinterpret_cast<ControlBlock*>(word & ~kFlags); }
  // Makes the device pass over the block. False: too late, the device has begun to execute the block.
  bool revoke() {
    uint32_t now = length.load(std::memory_order_relaxed);
    while ((now & kLatched) == 0) {
      // relaxed: only the winner matters; DmaObserver::passed() tells what the device did.
      if (length.compare_exchange_weak(now, 0, std::memory_order_relaxed)) return true;
    }
    return false;
  }
};

class DmaObserver {
 public:
  // The device is through with a block, executed or passed over. On the device's thread.
  virtual void passed(unsigned channel, ControlBlock& block, long result) = 0;

 protected:
  ~DmaObserver() = default;
};

struct DmaSpeed {
  uint64_t bytes_per_second = 0;  // of each block, in either direction; 0: as fast as the CPU copies
};

struct DmaCounters {
  std::atomic<uint64_t> executed{0}, passed_over{0}, bytes{0};
};

class DmaController {
 public:
  static constexpr unsigned kChannels = 4;

  DmaController(SourceMemory& memory, DmaObserver& observer, DmaSpeed speed)
      : memory_(memory), observer_(observer), speed_(speed) {}

  // The card's memory, for data on their way through it.
  [[nodiscard]] bool reserve(Arena& arena, size_t card_bytes);
  // Before the first trigger of the channel.
  void set_base(unsigned channel, ControlBlock* first) { position_[channel] = first; }
  void trigger(unsigned channel);

  // The device in real time: returns after stop().
  void run();
  void stop();
  // The device in virtual time: executes the blocks that are complete at `deadline_ns`, which must not
  // go back. A channel that is triggered between two calls begins at the deadline of the first.
  void run_until(int64_t deadline_ns);

  const DmaCounters& counters() const { return counters_; }

 private:
  // The block to be executed next, blocks of length 0 before it passed over; nullptr: all asleep.
  ControlBlock* pick(unsigned* channel);
  bool execute(unsigned channel, ControlBlock& block);
  void pass(unsigned channel, ControlBlock& block, long result);
  int64_t duration_ns(uint32_t bytes) const;

  SourceMemory& memory_;
  DmaObserver& observer_;
  const DmaSpeed speed_;
  std::byte* card_ = nullptr;
  ControlBlock* position_[kChannels] = {};
  FutexWord awake_{0};  // a bit for each channel, and kStop
  DmaCounters counters_;
  // Virtual time.
  int64_t time_ns_ = 0, last_deadline_ns_ = 0;
  const ControlBlock* working_on_ = nullptr;
};

}  // namespace ckpt
