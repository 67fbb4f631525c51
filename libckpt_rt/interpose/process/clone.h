// A process with a copy of the caller's memory and stack, by a system call of the program's choice.
//
// Owner:     interposition. Callers: threads of the program, by syscall(2).
#pragma once

namespace ckpt::calls {

// The kernel's result, in the parent and in the child. nr: __NR_fork, or __NR_clone or __NR_clone3 without
// CLONE_VM and without a stack.
long fork_call(long nr, long a, long b, long c, long d, long e);

}  // namespace ckpt::calls
