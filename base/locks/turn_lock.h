// A lock that is given in the order in which it was asked for.
//
// Owner:     base. Header only.
// Callers:   our own threads, and threads of the program inside our handlers.
// Never:     allocates, touches errno; is held across anything that waits for another holder.
//
// A thread that holds it for long calls yield(): each thread that waits gets it once, and none twice.
// (Unlocking and locking again would not do: a thread that was let in could be back in the queue before the
// holder.)
#pragma once

#include "base/locks/futex.h"

namespace ckpt {

template <LockRank kRank>
class TurnLock {
 public:
  void lock() {
    lock_ranks::takes(kRank);
    await(take_turn());
  }
  void unlock() {
    pass_on();
    lock_ranks::released(kRank);
  }
  // By the holder: lets in the threads that wait now. The holder takes its own next turn first: a thread that
  // was let in may ask again at once. Otherwise that thread would get in ahead for as long as the holder has
  // no processor.
  void yield() {
    // The holder waits for the lock as any other thread: with nothing held that is inside of it.
    lock_ranks::released(kRank);
    lock_ranks::takes(kRank);
    if (next_.load(std::memory_order_relaxed) == now_.load(std::memory_order_relaxed) + 1) return;
    const uint32_t mine = take_turn();
    pass_on();
    await(mine);
  }

 private:
  void pass_on() {
    const uint32_t now = now_.fetch_add(1, std::memory_order_seq_cst) + 1;
    // Wakes the group of the thread whose turn it is, not all that wait.
    if (next_.load(std::memory_order_seq_cst) != now) futex_wake_those(now_, group_of(now));
  }
  // seq_cst, with unlock(): either it sees that we wait, or we see that it is our turn.
  uint32_t take_turn() { return next_.fetch_add(1, std::memory_order_seq_cst); }
  void await(uint32_t mine) {
    for (uint32_t now; (now = now_.load(std::memory_order_seq_cst)) != mine;)
      futex_wait_as(now_, now, group_of(mine));
  }
  static uint32_t group_of(uint32_t turn) { return 1u << turn % 32; }
  FutexWord next_{0}, now_{0};
};
static_assert(sizeof(TurnLock<LockRank{}>) == 2 * sizeof(FutexWord));

template <LockRank kRank>
class ScopedTurn {
 public:
  explicit ScopedTurn(TurnLock<kRank>& l) : lock_(l) { lock_.lock(); }
  ~ScopedTurn() { lock_.unlock(); }
  ScopedTurn(const ScopedTurn&) = delete;
  ScopedTurn& operator=(const ScopedTurn&) = delete;

 private:
  TurnLock<kRank>& lock_;
};

}  // namespace ckpt
