#include "libckpt_rt/core/kernel/kernel_sigaction.h"

#include <signal.h>

#include "libckpt_rt/core/kernel/alternate_stacks.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" void ckpt_sigreturn_trampoline();

#ifndef SA_RESTORER
#define SA_RESTORER 0x04000000
#endif

namespace ckpt {

KernelSigaction make_own_action(void (*handler)(int, void*, void*)) {
  KernelSigaction action{};
  action.handler = reinterpret_cast<uint64_t>(handler);
  action.flags = SA_SIGINFO | SA_RESTART | SA_RESTORER;
  if (!alternate_stacks::are_shared()) action.flags |= SA_ONSTACK;
  action.restorer = reinterpret_cast<uint64_t>(&ckpt_sigreturn_trampoline);
  // A handler of the program must not run on top of a stopped thread.
  action.mask = ~0ull;
  return action;
}

void leave_alternate_stacks() {
  constexpr int kLast = 64;
  for (int signal = 1; signal <= kLast; ++signal) {
    KernelSigaction action{};
    if (kernel_sigaction(signal, nullptr, &action) != 0 || (action.flags & SA_ONSTACK) == 0 ||
        action.restorer != reinterpret_cast<uint64_t>(&ckpt_sigreturn_trampoline))
      continue;
    action.flags &= ~uint64_t{SA_ONSTACK};
    kernel_sigaction(signal, &action, nullptr);
  }
}

}  // namespace ckpt
