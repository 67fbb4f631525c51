// A lock that is given in the order in which it was asked for.
//
// Owner:     base. Header only.
// Callers:   our own threads, and threads of the program inside our handlers.
// Never:     allocates, touches errno; is held across anything that waits for another holder.
//
// Who unlocks and locks again at once comes behind everybody who waits now: so a thread that holds it for long lets each
// of the others in once by doing so (yield()), and none of them twice.
#pragma once

#include "base/futex.h"

namespace ckpt {

class TurnLock {
 public:
  void lock() {
    // seq_cst, with unlock(): either it sees that we wait, or we see that it is our turn.
    const uint32_t mine = next_.fetch_add(1, std::memory_order_seq_cst);
    for (uint32_t now; (now = now_.load(std::memory_order_seq_cst)) != mine;) futex_wait_as(now_, now, group_of(mine));
  }
  void unlock() {
    const uint32_t now = now_.fetch_add(1, std::memory_order_seq_cst) + 1;
    // Whoever has its turn, and no crowd with it.
    if (next_.load(std::memory_order_seq_cst) != now) futex_wake_those(now_, group_of(now));
  }
  // The holder: lets those in who wait now.
  void yield() {
    if (next_.load(std::memory_order_relaxed) == now_.load(std::memory_order_relaxed) + 1) return;
    unlock();
    lock();
  }

 private:
  static uint32_t group_of(uint32_t turn) { return 1u << turn % 32; }
  FutexWord next_{0}, now_{0};
};

class ScopedTurn {
 public:
  explicit ScopedTurn(TurnLock& l) : lock_(l) { lock_.lock(); }
  ~ScopedTurn() { lock_.unlock(); }
  ScopedTurn(const ScopedTurn&) = delete;
  ScopedTurn& operator=(const ScopedTurn&) = delete;

 private:
  TurnLock& lock_;
};

}  // namespace ckpt
