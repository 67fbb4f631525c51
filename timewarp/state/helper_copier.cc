// A thread of its own that copies as fast as it can.
//
//   kFree ──start()──► kQueued ──helper──► kCopying ──helper──► kDone ──settle()──► kFree
//                         └──settle()──► kTaken ──helper, when it comes to it──► kFree
// kQueued: whoever wins the exchange has the copy. kTaken: the owner has it, and has copied or given it up.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/locks/futex.h"
#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

namespace {

class HelperCopier final : public BackgroundCopier {
 public:
  explicit HelperCopier(uint32_t most_copies)
      : slots_(size_t{most_copies} * 2 + 8), helper_([this] { help(); }) {}
  ~HelperCopier() override {
    stop_.store(true, std::memory_order_seq_cst);
    queued_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(queued_);
    helper_.join();
  }

  [[nodiscard]] bool start(NonBlockingCopy& copy) override {
    Slot& slot = slots_[next_];
    // acquire: the helper is through with the slot's last use.
    if (slot.state.load(std::memory_order_acquire) != kFree) return false;
    slot.from = copy.from;
    slot.to = copy.to;
    slot.bytes = copy.bytes;
    slot.state.store(kQueued, std::memory_order_relaxed);
    copy.ticket = next_;
    next_ = next_ + 1 == slots_.size() ? 0 : next_ + 1;
    // seq_cst against the helper that goes to sleep: it sees the count, or we see that it sleeps. Publishes
    // the slot.
    queued_.fetch_add(1, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) futex_wake(queued_, 1);
    return true;
  }
  Settled settle(NonBlockingCopy& copy, uint32_t percent) override {
    Slot& slot = slots_[copy.ticket];
    uint32_t queued = kQueued;
    if (slot.state.compare_exchange_strong(queued, kTaken, std::memory_order_acq_rel)) {
      if (percent > 0) return Settled::kAborted;
      std::memcpy(copy.to, copy.from, copy.bytes);
      return Settled::kFinished;
    }
    // The helper is at it: a copy of one state, soon done. acquire: its bytes are visible.
    while (slot.state.load(std::memory_order_acquire) != kDone) std::this_thread::yield();
    slot.state.store(kFree, std::memory_order_relaxed);
    return percent > 100 ? Settled::kAborted : Settled::kComplete;
  }

 private:
  enum : uint32_t { kFree, kQueued, kCopying, kDone, kTaken };
  struct Slot {
    std::atomic<uint32_t> state{kFree};
    const void* from = nullptr;
    void* to = nullptr;
    uint32_t bytes = 0;
  };

  void help() {
    uint32_t done = 0;
    for (size_t at = 0;;) {
      const uint32_t queued = queued_.load(std::memory_order_seq_cst);
      if (stop_.load(std::memory_order_seq_cst)) return;
      if (queued == done) {
        asleep_.store(true, std::memory_order_seq_cst);
        futex_wait(queued_, done);  // returns at once if a copy has come since
        asleep_.store(false, std::memory_order_seq_cst);
        continue;
      }
      Slot& slot = slots_[at];
      at = at + 1 == slots_.size() ? 0 : at + 1;
      ++done;
      uint32_t state = kQueued;
      if (slot.state.compare_exchange_strong(state, kCopying, std::memory_order_acq_rel)) {
        std::memcpy(slot.to, slot.from, slot.bytes);
        slot.state.store(kDone, std::memory_order_release);
      } else {
        // release: whoever starts a copy in it sees that we have left it.
        slot.state.store(kFree, std::memory_order_release);
      }
    }
  }

  std::vector<Slot> slots_;
  size_t next_ = 0;
  FutexWord queued_{0};
  std::atomic<bool> asleep_{false}, stop_{false};
  std::thread helper_;
};

}  // namespace

std::unique_ptr<BackgroundCopier> make_helper_copier(uint32_t most_copies) {
  return std::make_unique<HelperCopier>(most_copies);
}

}  // namespace ckpt::timewarp
