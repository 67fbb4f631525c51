// Alternate signal stacks (sigaltstack(2)), by the thread that has them. Some programs give all their threads
// the same: they handle nothing there but a fault, after which they end. Our handler stays on its stack while
// the thread stands, so that two threads must not be there at once: from then on it runs on the threads' own
// stacks.
//
// Owner:   libckpt_rt. Callers: before, after: the thread that calls sigaltstack(2), also in handlers.
// Bounded: kSlots stacks are known. What is not is taken for one thread's own, as is one that a system call
//          instruction of the program's own has set.
#pragma once

#include <signal.h>

namespace ckpt::alternate_stacks {

// The thread will have this one. Here, not after the call: it could be stopped in between.
void before(const stack_t& wanted);

// It had that one, and has another now, or none.
void after(const stack_t& had);

// Two threads have had the same at once.
bool are_shared();

}  // namespace ckpt::alternate_stacks
