// prctl(2): a thread may forbid itself to read the processor's time stamp counter, or all system calls but
// four (strict seccomp). From then on interposed calls must do neither, or the thread would be killed.
// Filters of system calls, also those of seccomp(2), are remembered; none of our threads exists while one is
// set for all threads (SECCOMP_FILTER_FLAG_TSYNC).
#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/prctl.h>

#include <span>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/seccomp/filter_verdict.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/core/threads/thread_credentials.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long become_strict(long nr, long a, long b, long c, long d, long e) {
  // Before the call: after it no other is allowed.
  hooks::begin_strict();
  forbid_time();
  const long r = sys::call(nr, a, b, c, d, e);
  if (sys::failed(r)) hooks::end_strict();
  return r;
}

namespace {

std::span<const sock_filter> code_of(const void* program) {
  sock_fprog p{};
  if (!program_memory::read(p, program) || !program_memory::may_read(p.filter, p.len * sizeof(sock_filter)))
    return {};
  return {p.filter, p.len};
}

}  // namespace

long set_filter(own_filters::By by, unsigned flags, void* program) {
  // The filter would apply to our threads too, which make calls that the program may forbid itself.
  const bool of_all_threads = (flags & SECCOMP_FILTER_FLAG_TSYNC) != 0;
  const bool listens = (flags & SECCOMP_FILTER_FLAG_NEW_LISTENER) != 0;
  const bool deadly = filter_verdict::ends_at_checkpoint(code_of(program));
  if (of_all_threads) hooks::begin_alone();
  if (deadly) hooks::begin_deadly_filter();
  seccomp_state.filtered.store(true, std::memory_order_relaxed);
  const long r = own_filters::set(by, flags, program);
  if (deadly && (sys::failed(r) || (!listens && r > 0))) hooks::end_deadly_filter();
  if (of_all_threads) hooks::end_alone();
  // A number is the listener; else that of a thread that has not followed, and nothing was set.
  if (r == 0 || (listens && r > 0))
    own_filters::note(by, flags, program, of_all_threads || *single_threaded != 0);
  return r;
}

long prctl(int operation, long a, long b, long c, long d) {
  if (operation == PR_SET_SECCOMP && a == SECCOMP_MODE_STRICT)
    return become_strict(__NR_prctl, operation, a, b, c, d);
  if (operation == PR_SET_SECCOMP && a == SECCOMP_MODE_FILTER)
    return set_filter(own_filters::By::kPrctl, 0, reinterpret_cast<void*>(b));
  constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH, linux/prctl.h of 5.11
  if (operation == kSetDispatch) {
    own_dispatch::Call wanted{a, b, c, d};
    const auto note = own_dispatch::before_call(sys::gettid(), wanted);
    const long r =
        sys::call(__NR_prctl, long{operation}, wanted.mode, wanted.offset, wanted.length, wanted.selector);
    own_dispatch::after_call(note, wanted, r == 0);
    return r;
  }
  if (operation == PR_CAPBSET_DROP || operation == PR_CAP_AMBIENT) note_own_sets();
  if (operation == PR_SET_TSC && a == PR_TSC_SIGSEGV) forbid_counter();
  return sys::call(__NR_prctl, long{operation}, a, b, c, d);
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(int, prctl, int operation, ...) {
  va_list list;
  va_start(list, operation);
  const long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long), d = va_arg(list, long);
  va_end(list);
  return to_errno<int>(calls::prctl(operation, a, b, c, d));
}
