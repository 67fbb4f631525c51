// Whether a process still has its parent's memory, as a child of vfork(2) and posix_spawn(3) has until it
// executes another program.
//
// Owner:     base. Header only. Callers: whoever is about to send a process the checkpoint signal.
// Source:    kcmp(2), vfork(2). Such a child has the library, and its parent's handler at first: libc takes
//            that away from it (a child of posix_spawn blocks all signals meanwhile), and executes behind our
//            wrappers. A signal that is sent then ends the program it becomes. So this is asked before
//            anything else: from the moment at which a process has memory of its own, only our wrapper of
//            exec changes that, which blocks the signal.
#pragma once

#include <errno.h>
#include <linux/kcmp.h>

#include "base/sys.h"

namespace ckpt {

// blocks_signal(): does its first thread block the checkpoint signal? Asked where the kernel does not say
// whose the memory is (seccomp, no kcmp(2)). Where the process may be looked at and its parent may not, as
// that of a user's program that root started, they have not one memory: who changes its user makes the memory
// that it has together with others one that may not be looked at, until it executes a program.
template <typename Blocks>
bool has_parents_memory(int pid, int ppid, Blocks blocks_signal) {
  const long r = sys::call(__NR_kcmp, pid, ppid, long{KCMP_VM}, 0L, 0L);
  if (!sys::failed(r)) return r == 0;
  const bool parent_is_closed = r == -EPERM && sys::call(__NR_kcmp, pid, pid, long{KCMP_VM}, 0L, 0L) == 0;
  return !parent_is_closed && blocks_signal();
}

}  // namespace ckpt
