// The clocks of the saved process go on: part of the freestanding restorer.
//
// Owner:     restart. Included by restorer.cc only.
// Callers:   the restorer, as late as possible: the offsets of a time namespace are fixed from the
//            moment its first process is in it.
#pragma once

#include <time.h>

#include "base/sys.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

inline int64_t clock_ns(long clock) {
  struct {
    int64_t seconds, nanoseconds;
  } now{};
  sys::call(__NR_clock_gettime, clock, &now);
  return now.seconds * kNsPerSecond + now.nanoseconds;
}

inline char* put_number(char* at, int64_t value) {
  if (value < 0) {
    *at++ = '-';
    value = -value;
  }
  char digits[20];
  int n = 0;
  do {
    digits[n++] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  while (n > 0) *at++ = digits[--n];
  return at;
}

// "CLOCK SECONDS NANOSECONDS\n", nanoseconds never negative.
inline char* put_offset(char* at, int64_t clock, int64_t offset_ns) {
  int64_t seconds = offset_ns / kNsPerSecond;
  int64_t rest = offset_ns % kNsPerSecond;
  if (rest < 0) {
    rest += kNsPerSecond;
    --seconds;
  }
  at = put_number(at, clock);
  *at++ = ' ';
  at = put_number(at, seconds);
  *at++ = ' ';
  at = put_number(at, rest);
  *at++ = '\n';
  return at;
}

// Enters the prepared time namespace, or tells the library by how much CLOCK_MONOTONIC has jumped.
inline void continue_clocks(RestorerArgs& a, uint32_t& notes) {
  constexpr long kCloneNewTime = 0x80;
  if (a.time_ns_fd >= 0 && a.time_offsets_fd < 0) {
    // Of the job, which ckpt-restart has set for all.
    if (!sys::failed(sys::call(__NR_setns, a.time_ns_fd, kCloneNewTime))) {
      a.library.monotonic_shift_ns = 0;
      return;
    }
    notes |= kNoteTimeRefused;
  } else if (a.time_ns_fd >= 0) {
    // Offsets count from the machine's clocks, not from those of the namespace we are in.
    int64_t monotonic = a.saved_monotonic_ns - clock_ns(CLOCK_MONOTONIC) + a.outer_monotonic_ns;
    int64_t boottime = a.saved_boottime_ns - clock_ns(CLOCK_BOOTTIME) + a.outer_boottime_ns;
    char text[128];
    char* end = put_offset(text, CLOCK_MONOTONIC, monotonic);
    end = put_offset(end, CLOCK_BOOTTIME, boottime);
    long n = sys::call(__NR_write, a.time_offsets_fd, text, end - text);
    if (n == end - text && !sys::failed(sys::call(__NR_setns, a.time_ns_fd, kCloneNewTime))) {
      a.library.monotonic_shift_ns = 0;
      return;
    }
    notes |= kNoteTimeRefused;
  }
  a.library.monotonic_shift_ns = clock_ns(CLOCK_MONOTONIC) - a.saved_monotonic_ns;
}

}  // namespace
}  // namespace ckpt
