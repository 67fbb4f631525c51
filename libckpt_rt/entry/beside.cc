// The library beside a static program of Go (docs/static_programs.md). ckpt-beside has the dynamic linker load it, with a libc of its own, in the
// program's process before the program's first instruction, and calls this when the constructors have run.
#include <linux/rseq.h>
#include <signal.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/entry/moved_signal.h"
#include "libckpt_rt/entry/signal_handler.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Go's runtime takes all signals for itself as it starts, but for this one, which it leaves to a C library.
constexpr int kLeftByGo = 34;

bool take_signal(int signal) {
  const int old = own_signal.number;
  if (old == signal) return true;
  if (install_signal_handler(signal) != 0) return false;
  own_signal.number = signal;
  hooks::checkpoint_signal.store(signal, std::memory_order_relaxed);
  uint64_t ours = 1ull << (signal - 1);
  stop_state.world.expect_signal_of_process(true);
  sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &ours, 0L, 8L);
  stop_state.world.expect_signal_of_process(false);
  const KernelSigaction as_it_was{};
  kernel_sigaction(old, &as_it_was, nullptr);
  interval::renew();
  moved_signal::show();
  return true;
}

}  // namespace

}  // namespace ckpt

// 0: the library is active, and the calling thread, the only one, may become the program's: libc's rseq area of it is not the kernel's any more.
extern "C" __attribute__((visibility("default"))) int ckpt_rt_start_beside(void) {
  using namespace ckpt;
  if (!this_process.active || !take_signal(kLeftByGo)) return 1;
  forget_rseq_area();
  return 0;
}
