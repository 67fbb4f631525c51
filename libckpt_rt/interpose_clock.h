// The time when a call with a timeout begins, at the price of a function call.
//
// Owner:     interposition. Callers: any thread, at any moment; before the constructor ran a system call
//            takes the vdso's place.
// Never:     goes through libc's clock_gettime: a program may replace that by another clock.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/sys.h"
#include "libckpt_rt/hooks.h"

namespace ckpt {

namespace clock_internal {
using ClockGettime = int (*)(clockid_t, timespec*);
// Set once, by the constructor; null before, or without a vdso.
extern std::atomic<ClockGettime> vdso_clock_gettime;
extern std::atomic<int64_t> coarse_tick_ns;

inline int64_t read(clockid_t clock) {
  timespec ts;
  ClockGettime f = vdso_clock_gettime.load(std::memory_order_relaxed);
  if (__builtin_expect(f == nullptr, 0)) {
    sys::call(__NR_clock_gettime, static_cast<long>(clock), &ts);
  } else {
    f(clock, &ts);
  }
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}
}  // namespace clock_internal

// ns; see program_time_in_handler (interrupted_call.h).
inline int64_t program_time(clockid_t clock) {
  int64_t now = clock_internal::read(clock);
  return clock == CLOCK_MONOTONIC ? now - hooks::monotonic_shift_ns.load(std::memory_order_relaxed) : now;
}

// Not earlier than the present and at most one tick of the coarse clock later (4 ms with CONFIG_HZ=250);
// a quarter of the price. For the calls that are made often and hardly ever interrupted by us.
inline int64_t program_time_rounded_up() {
  return clock_internal::read(CLOCK_MONOTONIC_COARSE) +
         clock_internal::coarse_tick_ns.load(std::memory_order_relaxed) -
         hooks::monotonic_shift_ns.load(std::memory_order_relaxed);
}

}  // namespace ckpt
