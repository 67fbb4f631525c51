// Installing handlers: sigaction and the older names for it.
#include <signal.h>

#include <atomic>

#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/signals/handlers.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

using Handler = void (*)(int);

const Handler kHold = reinterpret_cast<Handler>(2);    // SIG_HOLD
const Handler kError = reinterpret_cast<Handler>(-1);  // SIG_ERR

// siginterrupt(3): signals for which signal(3) leaves out SA_RESTART.
constinit std::atomic<uint64_t> interrupting{0};

bool is_libc_signal(int signal) { return signal == 32 || signal == 33; }

long install(int signal, const KernelSigaction* action, KernelSigaction* old) {
  if (signal < 1 || signal > 64 || is_libc_signal(signal)) return -EINVAL;
  return sigaction_for_program(signal, action, old);
}

// The handler that was there, or SIG_ERR.
Handler install_handler(int signal, Handler handler, uint64_t flags, uint64_t mask) {
  KernelSigaction action{reinterpret_cast<uintptr_t>(handler), flags, 0, mask}, old{};
  if (handler == kError) {
    errno = EINVAL;
    return kError;
  }
  if (to_errno(install(signal, &action, &old)) != 0) return kError;
  return reinterpret_cast<Handler>(old.handler);
}

}  // namespace

CKPT_INTERPOSE(int, sigaction, int signal, const struct sigaction* action, struct sigaction* old) {
  KernelSigaction told{}, found{};
  if (action != nullptr) {
    told.handler = reinterpret_cast<uintptr_t>(action->sa_handler);
    told.flags = static_cast<uint64_t>(action->sa_flags);
    told.mask = *reinterpret_cast<const uint64_t*>(&action->sa_mask);
  }
  long r = install(signal, action != nullptr ? &told : nullptr, old != nullptr ? &found : nullptr);
  if (r == 0 && old != nullptr) {
    old->sa_handler = reinterpret_cast<Handler>(found.handler);
    old->sa_flags = static_cast<int>(found.flags);
    old->sa_restorer = reinterpret_cast<void (*)()>(found.restorer);
    *reinterpret_cast<uint64_t*>(&old->sa_mask) = found.mask;
  }
  return to_errno<int>(r);
}
CKPT_INTERPOSE_ALIAS(sigaction, __sigaction);

// BSD: stays installed, restarts, blocks itself.
CKPT_INTERPOSE(Handler, signal, int signal, Handler handler) {
  if (signal < 1 || signal > 64) {
    errno = EINVAL;
    return kError;
  }
  bool interrupts = (interrupting.load(std::memory_order_relaxed) & signal_bit(signal)) != 0;
  return install_handler(signal, handler, interrupts ? 0 : uint64_t{SA_RESTART}, signal_bit(signal));
}
CKPT_INTERPOSE_ALIAS(signal, bsd_signal);
CKPT_INTERPOSE_ALIAS(signal, ssignal);

// System V: for one delivery, which can nest.
CKPT_INTERPOSE(Handler, __sysv_signal, int signal, Handler handler) {
  return install_handler(signal, handler,
                         uint64_t{SA_RESETHAND} | SA_NODEFER | 0x20000000u /* SA_INTERRUPT */, 0);
}
CKPT_INTERPOSE_ALIAS(__sysv_signal, sysv_signal);

CKPT_INTERPOSE(int, siginterrupt, int signal, int interrupts) {
  KernelSigaction action{};
  long r = install(signal, nullptr, &action);
  if (r != 0) return to_errno<int>(r);
  if (interrupts != 0) {
    interrupting.fetch_or(signal_bit(signal), std::memory_order_relaxed);
    action.flags &= ~uint64_t{SA_RESTART};
  } else {
    interrupting.fetch_and(~signal_bit(signal), std::memory_order_relaxed);
    action.flags |= SA_RESTART;
  }
  return to_errno<int>(install(signal, &action, nullptr));
}

CKPT_INTERPOSE(int, sigignore, int signal) {
  KernelSigaction action{reinterpret_cast<uintptr_t>(SIG_IGN), 0, 0, 0};
  return to_errno<int>(install(signal, &action, nullptr));
}

CKPT_INTERPOSE(Handler, sigset, int signal, Handler handler) {
  if (signal < 1 || signal > 64 || is_libc_signal(signal) || handler == kError) {
    errno = EINVAL;
    return kError;
  }
  const uint64_t bit = signal_bit(signal);
  uint64_t before = 0;
  if (handler == kHold) {
    sigprocmask_for_program(SIG_BLOCK, &bit, &before);
    if ((before & bit) != 0) return kHold;
    KernelSigaction old{};
    if (to_errno(install(signal, nullptr, &old)) != 0) return kError;
    return reinterpret_cast<Handler>(old.handler);
  }
  Handler old = install_handler(signal, handler, 0, 0);
  if (old == kError) return kError;
  sigprocmask_for_program(SIG_UNBLOCK, &bit, &before);
  return (before & bit) != 0 ? kHold : old;
}
