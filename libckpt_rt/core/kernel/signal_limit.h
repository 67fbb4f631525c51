// As many signals and timers of the program's user may be queued as its hard limit allows, for the life of
// this object.
//
// Owner:   libckpt_rt.
// Callers: code that puts back signals or timers which the program had under an earlier limit. Only while no
//          thread of the program runs, which could set or read its limit.
// Source:  RLIMIT_SIGPENDING, getrlimit(2).
#pragma once

#include <sys/resource.h>

#include "base/sys.h"

namespace ckpt {

class SignalLimitRaised {
 public:
  SignalLimitRaised() {
    if (sys::call(__NR_prlimit64, 0L, RLIMIT_SIGPENDING, 0L, &limit_) != 0 ||
        limit_.rlim_cur == limit_.rlim_max)
      return;
    const rlimit raised{limit_.rlim_max, limit_.rlim_max};
    raised_ = sys::call(__NR_prlimit64, 0L, RLIMIT_SIGPENDING, &raised, 0L) == 0;
  }
  ~SignalLimitRaised() {
    if (raised_) sys::call(__NR_prlimit64, 0L, RLIMIT_SIGPENDING, &limit_, 0L);
  }
  SignalLimitRaised(const SignalLimitRaised&) = delete;
  SignalLimitRaised& operator=(const SignalLimitRaised&) = delete;

 private:
  rlimit limit_{};
  bool raised_ = false;
};

}  // namespace ckpt
