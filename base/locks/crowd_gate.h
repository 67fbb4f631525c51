// Lets a few threads at a time go on to a TurnLock, which is given in the order in which it was asked for.
//
// Where a thousand threads ask for a TurnLock, each is woken for its turn, and a holder that yields lets in a
// thousand. Behind this gate there are never more than kMost of them. A thread that comes while there is room
// goes in, before those that sleep.
//
// Owner:     base. Header only.
// Callers:   as of TurnLock: threads of the program inside our handlers.
// Never:     allocates, touches errno.
#pragma once

#include "base/locks/futex.h"
#include "base/locks/turn_lock.h"

namespace ckpt {

template <LockRank kRank>
class CrowdGate {
 public:
  // With the agent fewer than the groups that a wake of TurnLock tells apart.
  static constexpr uint32_t kMost = 8;

  void enter() {
    lock_ranks::takes(kRank);
    uint32_t now = inside_.load(std::memory_order_relaxed);
    for (;;) {
      if (now < kMost) {
        // No ordering is needed for what the lock guards: TurnLock gives it.
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
    lock_ranks::released(kRank);
  }

 private:
  FutexWord inside_{0}, waiting_{0};
};
static_assert(sizeof(CrowdGate<LockRank{}>) == 2 * sizeof(FutexWord));

// A turn of one of many.
template <LockRank kGate, LockRank kTurn>
class ScopedCrowdTurn {
 public:
  ScopedCrowdTurn(CrowdGate<kGate>& gate, TurnLock<kTurn>& lock) : gate_(gate), lock_(lock) {
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
  CrowdGate<kGate>& gate_;
  TurnLock<kTurn>& lock_;
};

}  // namespace ckpt
