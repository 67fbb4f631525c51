// The kernel's struct sigaction, which is not libc's.
//
// Owner: libckpt_rt. Callers: any thread. Source: rt_sigaction(2), asm/signal.h.
#pragma once

#include <cstdint>

#include "base/sys.h"

namespace ckpt {

struct KernelSigaction {
  uint64_t handler, flags, restorer, mask;
};

using SignalHandler = void (*)(int signal, void* info, void* frame);

// An action of ours: all signals are blocked while it runs, and the kernel restarts what it can restart. The
// handler runs on the alternate stack where there is one: a coroutine's stack may be too small for a frame.
// Where threads share one the handler does not run there.
KernelSigaction make_own_action(void (*handler)(int, void*, void*));

// Actions of ours that are set do not use alternate stacks any more (core/kernel/alternate_stacks.h).
void leave_alternate_stacks();

// 0 or -errno; either pointer may be nullptr.
inline long kernel_sigaction(int signal, const KernelSigaction* action, KernelSigaction* old) {
  return sys::call(__NR_rt_sigaction, signal, action, old, 8L);
}

}  // namespace ckpt
