// Calls that libc makes to itself and that give memory back: free() of a large block, the trimming of a
// heap, realloc(), the end of a thread. They do not pass by the names that a preloaded library can take.
//
// All of them go through the entries of four functions of libc: munmap, madvise, mremap, brk. Their
// first instruction is replaced by a jump to the interposed function of the same name: no cost while
// nothing is copied, no trap, and nothing is missed. Measured alternatives: docs/interposition.md.
//
// Owner:     libckpt_rt/interpose.
// Callers:   redirect_libc: the constructor; and the leader at restart, before other threads exist
//            (libc's code comes back from its file), raw system calls only.
#pragma once

namespace ckpt {

// Writes the jumps. True if all four are in place; false if libc's code is not as expected, may not be
// written, or other threads run. Then memory that libc gives back is noticed too late, and the attempt at a
// checkpoint is spoiled.
bool redirect_libc();

// What redirect_libc() last returned.
bool libc_is_redirected();

// After a restart clock_gettime, getrusage and times lead to ours as well (processor_calls.cc), also from
// within libc (clock(3)).
//
// All that interposition must do in a restored process: redirect_libc, reset_clock, and that. By the leader,
// before other threads exist.
void interposition_after_restart();

}  // namespace ckpt
