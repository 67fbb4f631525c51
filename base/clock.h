// Time in nanoseconds by a raw system call, not by the vdso, so that it works on any thread.
//
// Owner: base. Header only. Callers: any thread.
#pragma once

#include <time.h>

#include "base/sys.h"

namespace ckpt {

inline int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec ts{};
  sys::call(__NR_clock_gettime, static_cast<long>(clock), &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace ckpt
