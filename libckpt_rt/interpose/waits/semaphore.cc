// sem_timedwait and sem_clockwait. libc's functions wait by a futex call inside libc, and end with EINTR
// after any handler. So the waiting is done here, by the stub, on libc's own semaphore.
//
// A sem_t of 64-bit libc (2.21 and later; checked at start, else libc's functions are used):
//   bits 0-31 of the first word    value
//   bits 32-63                     number of threads that wait
//   the int after it               0: used by one process, 128: shared
// sem_post() adds one to the value and, if any thread waits, wakes one that waits on the value's word.
#include <semaphore.h>

#include <atomic>

#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

struct Semaphore {
  std::atomic<uint64_t> value_and_waiters;
  int shared;

  uint32_t* value_word() { return reinterpret_cast<uint32_t*>(&value_and_waiters); }
};
constexpr uint64_t kOneWaiter = uint64_t{1} << 32;
constexpr int kShared = 128;

using ClockWait = int(sem_t*, clockid_t, const timespec*);
// libc's own, if its semaphores are not as described above; else null.
constinit std::atomic<ClockWait*> libc_clockwait{nullptr};

[[gnu::constructor(101)]] void check_layout() {
  using Init = int(sem_t*, int, unsigned);
  auto* init = reinterpret_cast<Init*>(dynamic_linker::find(RTLD_NEXT, "sem_init"));
  // No libpthread yet, as libraries before glibc 2.34 may have it. glibc has had these semaphores since 2.21.
  if (init == nullptr) return;
  sem_t mine, theirs;
  init(&mine, 0, 5);
  init(&theirs, 1, 7);
  auto& a = *reinterpret_cast<Semaphore*>(&mine);
  auto& b = *reinterpret_cast<Semaphore*>(&theirs);
  bool known = a.value_and_waiters == 5 && a.shared == 0 && b.value_and_waiters == 7 && b.shared == kShared;
  if (!known) libc_clockwait = reinterpret_cast<ClockWait*>(dynamic_linker::find(RTLD_NEXT, "sem_clockwait"));
}

bool take(Semaphore& s, uint64_t waiters_too) {
  uint64_t seen = s.value_and_waiters.load(std::memory_order_relaxed);
  while (static_cast<uint32_t>(seen) > 0) {
    // acquire: what the poster did before sem_post() is seen.
    if (s.value_and_waiters.compare_exchange_weak(seen, seen - 1 - waiters_too, std::memory_order_acquire,
                                                  std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void stop_waiting(void* s) {
  static_cast<Semaphore*>(s)->value_and_waiters.fetch_sub(kOneWaiter, std::memory_order_relaxed);
}

long wait_until(Semaphore& s, clockid_t clock, const timespec* deadline) {
  const int operation = FUTEX_WAIT_BITSET | (s.shared == kShared ? 0 : FUTEX_PRIVATE_FLAG) |
                        (clock == CLOCK_REALTIME ? FUTEX_CLOCK_REALTIME : 0);
  while (!take(s, kOneWaiter)) {
    long r = -ETIMEDOUT;
    if (deadline->tv_sec >= 0) {
      // Only around the call: a cancellation must find this thread counted as waiting, and nothing taken.
      CancellationPoint here;
      r = calls::futex(s.value_word(), operation, 0, deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
    }
    if (r == -ETIMEDOUT || r == -EINTR) {
      stop_waiting(&s);
      return r;
    }
  }
  return 0;
}

long clock_wait(Semaphore& s, clockid_t clock, const timespec* deadline) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return -EINVAL;
  if (deadline->tv_nsec < 0 || deadline->tv_nsec >= 1'000'000'000) return -EINVAL;
  {
    CancellationPoint here;  // a request that waits is taken here
  }
  if (take(s, 0)) return 0;
  long r;
  // relaxed: sem_post's addition is ordered against this one by being on the same word.
  s.value_and_waiters.fetch_add(kOneWaiter, std::memory_order_relaxed);
  pthread_cleanup_push(stop_waiting, &s);
  r = wait_until(s, clock, deadline);
  pthread_cleanup_pop(0);
  return r;
}

}  // namespace

CKPT_INTERPOSE(int, sem_clockwait, sem_t* semaphore, clockid_t clock, const timespec* deadline) {
  if (ClockWait* theirs = libc_clockwait.load(std::memory_order_relaxed))
    return theirs(semaphore, clock, deadline);
  return to_errno<int>(clock_wait(*reinterpret_cast<Semaphore*>(semaphore), clock, deadline));
}

CKPT_INTERPOSE(int, sem_timedwait, sem_t* semaphore, const timespec* deadline) {
  return ckpt_libc_sem_clockwait(semaphore, CLOCK_REALTIME, deadline);
}
