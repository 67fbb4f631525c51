// Waiting for signals: pause, sigsuspend, sigpause, sigwait, sigwaitinfo, sigtimedwait.
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, pause, void) {
  CancellationPoint here;
  return to_errno<int>(calls::pause());
}

CKPT_INTERPOSE(int, sigsuspend, const sigset_t* mask) {
  CancellationPoint here;
  return to_errno<int>(calls::sigsuspend(mask));
}
CKPT_INTERPOSE_ALIAS(sigsuspend, __sigsuspend);

// BSD: the argument is a mask of the first 32 signals; System V: a signal to wait for as well.
CKPT_INTERPOSE(int, __sigpause, int signal_or_mask, int is_signal) {
  uint64_t mask = static_cast<unsigned>(signal_or_mask);
  if (is_signal != 0) {
    if (signal_or_mask < 1 || signal_or_mask > 64) return to_errno<int>(-EINVAL);
    sys::call(__NR_rt_sigprocmask, long{SIG_BLOCK}, 0L, &mask, 8L);
    mask &= ~signal_bit(signal_or_mask);
  }
  CancellationPoint here;
  return to_errno<int>(calls::sigsuspend(&mask));
}

CKPT_INTERPOSE(int, sigpause, int mask) { return ckpt_libc___sigpause(mask, 0); }

CKPT_INTERPOSE(int, __xpg_sigpause, int signal) { return ckpt_libc___sigpause(signal, 1); }

CKPT_INTERPOSE(int, sigtimedwait, const sigset_t* set, siginfo_t* info, const timespec* timeout) {
  CancellationPoint here;
  long r = calls::sigtimedwait(set, info, timeout);
  // As libc: raise() is tgkill(), which POSIX does not know.
  if (r > 0 && info != nullptr && info->si_code == SI_TKILL) info->si_code = SI_USER;
  return to_errno<int>(r);
}

CKPT_INTERPOSE(int, sigwaitinfo, const sigset_t* set, siginfo_t* info) {
  return ckpt_libc_sigtimedwait(set, info, nullptr);
}

// Returns the error; never EINTR.
CKPT_INTERPOSE(int, sigwait, const sigset_t* set, int* signal) {
  CancellationPoint here;
  long r;
  do {
    r = calls::sigtimedwait(set, nullptr, nullptr);
  } while (r == -EINTR);
  if (r < 0) return static_cast<int>(-r);
  *signal = static_cast<int>(r);
  return 0;
}
