// Waiting and locking by futex, for threads that have no libc.
//
// Owner:     base. Header only.
// Callers:   our own threads, and threads of the program inside our handlers.
// Never:     allocates, touches errno. All waits are private to the process.
#pragma once

#include <linux/futex.h>
#include <time.h>

#include <atomic>
#include <climits>

#include "base/locks/lock_ranks.h"
#include "base/sys.h"

namespace ckpt {

using FutexWord = std::atomic<uint32_t>;
static_assert(sizeof(FutexWord) == 4);

// Sleeps while word == expected; may wake early. timeout relative, nullptr for ever.
// Returns 0, -EAGAIN, -EINTR or -ETIMEDOUT.
inline long futex_wait(FutexWord& word, uint32_t expected, const timespec* timeout = nullptr) {
  return sys::call(__NR_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, expected, timeout, 0L, 0L);
}
inline long futex_wake(FutexWord& word, int count = INT_MAX) {
  return sys::call(__NR_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, 0L, 0L, 0L);
}

// The same for one of several groups of waiters: a wake reaches those whose bits it names.
// until: by CLOCK_MONOTONIC.
inline long futex_wait_as(FutexWord& word, uint32_t expected, uint32_t bits,
                          const timespec* until = nullptr) {
  return sys::call(__NR_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected, until, 0L, bits);
}
inline long futex_wake_those(FutexWord& word, uint32_t bits) {
  return sys::call(__NR_futex, &word, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, INT_MAX, 0L, 0L, bits);
}

// The three-state mutex of Drepper, "Futexes are tricky", section 5: 0 free, 1 held, 2 contended.
template <LockRank kRank>
class FutexLock {
 public:
  void lock() {
    lock_ranks::takes(kRank);
    uint32_t c = 0;
    // acquire: what the last holder wrote before unlock() is seen by us.
    if (word_.compare_exchange_strong(c, 1, std::memory_order_acquire)) return;
    if (c != 2) c = word_.exchange(2, std::memory_order_acquire);
    while (c != 0) {
      futex_wait(word_, 2);
      c = word_.exchange(2, std::memory_order_acquire);
    }
  }
  void unlock() {
    // release: publishes what we wrote to the next holder.
    if (word_.exchange(0, std::memory_order_release) == 2) futex_wake(word_, 1);
    lock_ranks::released(kRank);
  }

 private:
  FutexWord word_{0};
};
static_assert(sizeof(FutexLock<LockRank{}>) == sizeof(FutexWord));

template <LockRank kRank>
class ScopedLock {
 public:
  explicit ScopedLock(FutexLock<kRank>& l) : lock_(l) { lock_.lock(); }
  ~ScopedLock() { lock_.unlock(); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  FutexLock<kRank>& lock_;
};

}  // namespace ckpt
