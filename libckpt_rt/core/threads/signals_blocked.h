// No signal comes between two steps of a thread, and so nothing of the program and no checkpoint.
//
// Owner:   the calling thread. Callers: interposed calls that note what the kernel has answered; those that
//          give the agent an order.
// Never:   around a call that waits.
#pragma once

#include <signal.h>

#include <cstdint>
#include <initializer_list>

#include "base/sys.h"

namespace ckpt {

class SignalsBlocked {
 public:
  // kButFaults: what raises a fault's signal does not wait; a thread may handle its own faults.
  enum Which { kAll, kButFaults };
  explicit SignalsBlocked(Which which) {
    uint64_t mask = ~uint64_t{0};
    if (which == kButFaults) {
      for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS})
        mask &= ~(uint64_t{1} << (fault - 1));
    }
    sys::call(__NR_rt_sigprocmask, SIG_BLOCK, &mask, &before_, 8L);
  }
  ~SignalsBlocked() { sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before_, 0L, 8L); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  uint64_t before_ = 0;
};

}  // namespace ckpt
