// The handlers that the program installs, called through slots of ours, so that we know when a handler
// of the program is about to run on top of a call that a checkpoint interrupted.
//
// Owner:     libckpt_rt/interpose. The kernel is told the address of a slot (interpose/signals/handlers.S).
//            The slot jumps to the program's function with all registers as the kernel set them, so that the
//            slot is not seen in a backtrace. A slot that was given to a function is never given to another.
//            So two sigaction() at a time do no harm: the address that the kernel has says which function
//            runs.
// Callers:   the interposed sigaction and its kin; fix_interrupted_call.
// Never:     fails: with all slots in use the function is installed as it is.
#pragma once

#include <cstdint>

#include "libckpt_rt/core/kernel/kernel_sigaction.h"

namespace ckpt {

// What to tell the kernel for a program's handler (SIG_DFL and SIG_IGN are themselves), and back.
uintptr_t slot_for_handler(uintptr_t handler, uint64_t flags);
uintptr_t handler_behind(uintptr_t kernel_handler);
bool is_handler_slot(uintptr_t kernel_handler);
bool slot_restarts(unsigned slot);  // installed with SA_RESTART
// Slots ask hooks::took_late_request() from now on before a handler of that signal runs. All threads stand.
void mark_former_signal(int signal);

// rt_sigaction as the program sees it: hides slots and the checkpoint signal. -errno on failure.
// Either pointer may be null. A null restorer in `action` is replaced by ours.
long sigaction_for_program(int signal, const KernelSigaction* action, KernelSigaction* old);

}  // namespace ckpt
