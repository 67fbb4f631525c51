// Copies queued for an emulated DMA device, many at a time, each of which can be settled alone: the
// multiprogrammed non-blocking checkpoints of CCL v3.0 (Santoro and Quaglia, sections 3.2 and 3.3).
//
// Owner:     copier.
// Callers:   submit() and resync(): any thread. run() or run_until(): the device's thread (dma_controller.h).
// Never:     allocates after reserve(). Waits only in resync(), for the one burst that is being
//            transferred, and for the lock of a channel in submit(), which is held while blocks are filled.
//
// Each priority has a channel and a circle of slots; a slot is one copy, packed into control blocks, two
// for each burst: program memory to card, card to buffer. The last block used leads to the first of the
// next slot, so the device walks from copy to copy without anybody's help.
//
//   kFree ──submit()──► kQueued ──last block passed──► kDone ───┐
//     ▲                    └──────resync()──────► kTaken ──┐    │
//     └── the device is through, and the copy completed ◄──┴────┘
// kQueued: the device works on it. Both ways out are one compare-and-swap, so that exactly one of the
//          device and the thread in resync() completes the copy.
// kDone:   the device calls the listener.
// kTaken:  the thread in resync() revokes the blocks that the device has not begun, waits for the one it
//          is in, and copies what is missing (commit) or leaves it (abort). The device passes over the
//          revoked blocks in its own time; only then is the slot free again.
// The state carries the number of the use, so that a ticket of an earlier use fits nothing.
#pragma once

#include "copier/engines/dma_controller.h"

namespace ckpt {

struct DmaSettings {
  uint32_t slots = 64;             // copies that can be queued, for each priority
  uint32_t most_bytes = 64 << 10;  // of one copy
  uint32_t burst_bytes = 4096;     // of one transfer
  DmaSpeed speed;
};

struct DmaCopyCounters {
  std::atomic<uint64_t> accepted{0}, refused{0}, committed{0}, aborted{0}, finished_bytes{0};
};

class DmaCopyEngine final : public CopyEngine, private DmaObserver {
 public:
  DmaCopyEngine(SourceMemory& memory, CopyListener& listener, const DmaSettings& settings)
      : memory_(memory),
        listener_(listener),
        settings_(settings),
        controller_(memory, *this, settings.speed) {}

  // Bytes of arena that reserve() takes, at most.
  static size_t arena_bytes(const DmaSettings& settings);
  [[nodiscard]] bool reserve(Arena& arena);

  [[nodiscard]] bool submit(const CopyRequest& request, CopyPriority priority, CopyTicket* ticket) override;
  [[nodiscard]] Resync resync(CopyTicket ticket, uint32_t threshold) override;

  void run() { controller_.run(); }
  void stop() { controller_.stop(); }
  void run_until(int64_t deadline_ns) { controller_.run_until(deadline_ns); }

  const DmaCopyCounters& counters() const { return counters_; }
  const DmaCounters& device_counters() const { return controller_.counters(); }

 private:
  static constexpr unsigned kPriorities = 2;
  enum State : uint64_t { kFree = 0, kQueued = 1, kDone = 2, kTaken = 3 };

  struct Slot {
    std::atomic<uint64_t> state{kFree};  // use << 2 | State
    FutexWord passed{0};                 // blocks the device is through with
    FutexWord waiting{0};                // threads that sleep on `passed`
    std::atomic<uint32_t> holders{0};    // 2: the device, and the thread that completes the copy
    uint32_t blocks = 0;                 // used
    uint64_t cookie = 0;
    long result = 0;  // of the first read that failed; by the device's thread, before it stores `passed`
  };
  struct Channel {
    FutexLock<LockRank::kDmaChannel> lock;  // leaf; guards next_slot and the filling of slots
    uint32_t next_slot = 0;
    Slot* slots = nullptr;
    ControlBlock* blocks = nullptr;  // blocks_per_slot() for each slot
  };

  // As in the paper: 0 the more important, 2 the less.
  static unsigned channel_of(unsigned priority) { return priority * 2; }
  static uint32_t blocks_per_slot(const DmaSettings& settings);
  ControlBlock* blocks_of(const Channel& channel, uint32_t slot) const {
    return channel.blocks + size_t{slot} * blocks_per_slot(settings_);
  }
  void passed(unsigned channel, ControlBlock& block, long result) override;
  // Waits until the device is through with block `index` and all before it.
  static void await_passed(Slot& slot, uint32_t index);
  static void drop(Slot& slot);

  SourceMemory& memory_;
  CopyListener& listener_;
  const DmaSettings settings_;
  DmaController controller_;
  Channel channels_[kPriorities];
  DmaCopyCounters counters_;
};

}  // namespace ckpt
