// The time when a call with a timeout begins, for the cost of a function call or less.
//
// Owner:     libckpt_rt/interpose. Callers: program_time, begin_mark: any thread, at any moment; before the
//            constructor ran a system call takes the vdso's place. begin_in_handler: handlers.
//            reset_clock: the constructor, and the leader at restart.
// Never:     goes through libc's clock_gettime: a program may replace that by another clock.
//
// A BeginMark is what a call that is made often can afford: the processor's time stamp counter, read
// bare, where the kernel itself trusts it as its clock; else the clock. Its value in ns is found out only if
// a checkpoint interrupts the call, from two readings of both: one at start, one then. Between them the clock
// may have been slewed by 500 ppm against the counter, so a 1024th of the time is left out, and 2 us for the
// readings: a timeout may end later by that, and never early. (The coarse clock would be cheaper still, but
// on a loaded machine it lags by any number of ticks.)
#pragma once

#include <time.h>
#include <x86intrin.h>

#include <atomic>
#include <cstdint>

#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"

namespace ckpt {

namespace clock_internal {
using ClockGettime = int (*)(clockid_t, timespec*);
// Set by the constructor. Null before that, without a vdso, and after forbid_counter().
extern std::atomic<ClockGettime> vdso_clock_gettime;
extern std::atomic<bool> counter_is_clock;
extern std::atomic<bool> time_forbidden;

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

using BeginMark = uint64_t;
inline constexpr BeginMark kCounterMark = uint64_t{1} << 63;  // else ns of program_time
// No time known: a timeout then counts from the interruption, so that it may end late, never early.
inline constexpr BeginMark kNoMark = 0;
inline BeginMark begin_mark() {
  if (__builtin_expect(clock_internal::counter_is_clock.load(std::memory_order_relaxed), 1)) {
    return __rdtsc() | kCounterMark;
  }
  return clock_internal::time_forbidden.load(std::memory_order_relaxed)
             ? kNoMark
             : static_cast<BeginMark>(program_time(CLOCK_MONOTONIC));
}

// program_time at the mark, or a little later; now, for a mark from before a restart.
int64_t begin_in_handler(BeginMark mark);

// The calling thread is about to forbid itself to read the counter (PR_SET_TSC); the vdso reads it, too. From
// now on all threads use system calls instead: to find out which thread it is would take as long.
void forbid_counter();
// The thread is about to forbid itself these system calls as well (strict seccomp).
void forbid_time();

// Takes the first reading. Raw system calls only.
void reset_clock();

}  // namespace ckpt
