// Lets a few in at a time: before a lock that is given in the order in which it was asked for.
//
// Of a thousand threads that ask for such a lock each is woken for its turn, and the holder who lets in those
// that wait lets in a thousand. Behind this gate there are never more than kMost of them; who comes while
// there is room goes in, woken or not.
//
// Owner:     base. Header only.
// Callers:   as of TurnLock: threads of the program inside our handlers.
// Never:     allocates, touches errno.
#pragma once

#include "base/locks/futex.h"
#include "base/locks/turn_lock.h"

namespace ckpt {

class CrowdGate {
 public:
  static constexpr uint32_t kMost =
      8;  // with the agent fewer than the groups that a wake of TurnLock tells apart

  void enter() {
    uint32_t now = inside_.load(std::memory_order_relaxed);
    for (;;) {
      if (now < kMost) {
        // acquire and release are the lock's behind it.
        if (inside_.compare_exchange_weak(now, now + 1, std::memory_order_seq_cst)) return;
        continue;
      }
      // seq_cst, with leave(): either it sees that we wait, or the number is another when we begin to.
      waiting_.fetch_add(1, std::memory_order_seq_cst);
      futex_wait(inside_, kMost);
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      now = inside_.load(std::memory_order_relaxed);
    }
  }
  void leave() {
    inside_.fetch_sub(1, std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) != 0) futex_wake(inside_, 1);
  }

 private:
  FutexWord inside_{0}, waiting_{0};
};

// A turn of one of many.
class ScopedCrowdTurn {
 public:
  ScopedCrowdTurn(CrowdGate& gate, TurnLock& lock) : gate_(gate), lock_(lock) {
    gate_.enter();
    lock_.lock();
  }
  ~ScopedCrowdTurn() {
    lock_.unlock();
    gate_.leave();
  }
  ScopedCrowdTurn(const ScopedCrowdTurn&) = delete;
  ScopedCrowdTurn& operator=(const ScopedCrowdTurn&) = delete;

 private:
  CrowdGate& gate_;
  TurnLock& lock_;
};

}  // namespace ckpt
