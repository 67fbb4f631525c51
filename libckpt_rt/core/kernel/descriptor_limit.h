// As many descriptors may be open as the program's hard limit allows, from raise() on, for the life of this
// object.
//
// Owner:   libckpt_rt.
// Callers: code that receives descriptors which the program has sent and not received yet, and which no limit
//          counts until then. Only while no thread of the program runs, which could set or read its limit.
// Source:  RLIMIT_NOFILE, getrlimit(2).
#pragma once

#include <sys/resource.h>

#include "base/sys.h"

namespace ckpt {

class DescriptorLimitRaised {
 public:
  DescriptorLimitRaised() = default;
  ~DescriptorLimitRaised() {
    if (raised_) sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &limit_, 0L);
  }
  DescriptorLimitRaised(const DescriptorLimitRaised&) = delete;
  DescriptorLimitRaised& operator=(const DescriptorLimitRaised&) = delete;

  // False: it is already, or cannot be.
  bool raise() {
    if (raised_ || sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit_) != 0 ||
        limit_.rlim_cur == limit_.rlim_max)
      return false;
    const rlimit raised{limit_.rlim_max, limit_.rlim_max};
    raised_ = sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &raised, 0L) == 0;
    return raised_;
  }

 private:
  rlimit limit_{};
  bool raised_ = false;
};

}  // namespace ckpt
