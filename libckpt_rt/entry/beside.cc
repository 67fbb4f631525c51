// The library beside a static program of Go (docs/static_programs.md). ckpt-beside has the dynamic linker
// load it, with a libc of its own, in the program's process before the program's first instruction, and calls
// this when the constructors have run.
#include <signal.h>

#include "base/protocol/beside_protocol.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// What waits is a request that came while this process executed the program: it was meant for us. All signals
// are blocked.
void take_over_requests(int signal) {
  const uint64_t set = 1ull << (signal - 1);
  const timespec kNow{0, 0};
  siginfo_t info;
  while (signal != kSignalBeside && sys::call(__NR_rt_sigtimedwait, &set, &info, &kNow, 8L) == signal)
    sys::call(__NR_rt_sigqueueinfo, sys::getpid(), kSignalBeside, &info);
}

}  // namespace

}  // namespace ckpt

// The calling thread, the only one, may become the program's: libc's rseq area of it is not the kernel's any
// more. The checkpoint's signal of other programs, which a parent may have left blocked; 0: the library is
// not active.
extern "C" __attribute__((visibility("default"))) int ckpt_rt_start_beside(void) {
  using namespace ckpt;
  if (!this_process.active) return 0;
  forget_rseq_area();
  take_over_requests(user_settings().signal);
  return user_settings().signal;
}
