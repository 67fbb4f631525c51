// What the kernel will do to a semaphore when this process ends (SEM_UNDO), asked from the kernel.
//
// The kernel has no call that tells it. But semop(2) refuses an operation with SEM_UNDO by which the value
// that is to be undone would leave its range (ERANGE), before it looks whether the operations behind it would
// have to wait (EAGAIN). So operations of which the last can never be made change nothing, and the error
// tells whether what is to be undone lies below a bound. Some eighteen calls of about a microsecond find the
// value.
//
// Owner:     libckpt_rt. Callers: the agent, all threads of all members of the job standing. The agent shares
//            the program's list of such values with its threads (CLONE_SYSVSEM).
// Never:     changes a semaphore, not even where somebody outside of the job changes it meanwhile.
#pragma once

#include <cstdint>

namespace ckpt::system_v {

struct KernelUndo {
  bool known = false;
  int32_t value = 0;  // what the kernel will add to the semaphore
};

// value_now: of the semaphore. Not known: the process may not change the set, somebody changes it meanwhile,
// or the kernel reckons in another way.
KernelUndo ask_kernel_undo(int id, uint16_t number, uint16_t value_now);

}  // namespace ckpt::system_v
