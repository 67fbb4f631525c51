// A lock that is given in the order in which it was asked for.
//
// Owner:     base. Header only.
// Callers:   our own threads, and threads of the program inside our handlers.
// Never:     allocates, touches errno; is held across anything that waits for another holder.
//
// A thread that holds it for long lets each of those in who wait, by yield(), and none of them twice. (To
// unlock and to lock again would not do: whoever is let in may be back in the queue before the one who lets
// in.)
#pragma once

#include "base/locks/futex.h"

namespace ckpt {

class TurnLock {
 public:
  void lock() { await(take_turn()); }
  void unlock() {
    const uint32_t now = now_.fetch_add(1, std::memory_order_seq_cst) + 1;
    // Whoever has its turn, and no crowd with it.
    if (next_.load(std::memory_order_seq_cst) != now) futex_wake_those(now_, group_of(now));
  }
  // The holder: lets those in who wait now. Its next turn is taken first: whoever is let in may ask again at
  // once, and would come in between for as long as the holder has no processor.
  void yield() {
    if (next_.load(std::memory_order_relaxed) == now_.load(std::memory_order_relaxed) + 1) return;
    const uint32_t mine = take_turn();
    unlock();
    await(mine);
  }

 private:
  // seq_cst, with unlock(): either it sees that we wait, or we see that it is our turn.
  uint32_t take_turn() { return next_.fetch_add(1, std::memory_order_seq_cst); }
  void await(uint32_t mine) {
    for (uint32_t now; (now = now_.load(std::memory_order_seq_cst)) != mine;)
      futex_wait_as(now_, now, group_of(mine));
  }
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
