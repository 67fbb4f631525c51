// The program's process begins the program itself, where the tracer is its child: a first process of a
// container (pid 1), or one that adopts orphans (PR_SET_CHILD_SUBREAPER), has the tracer to wait for, and the
// program must find no child that it did not make.
//
// Owner:     beside. The tracer makes a Beginning; the program's thread, the only one, runs what it leads to.
#pragma once

#include <sys/user.h>
#include <ucontext.h>

#include <cstdint>

namespace ckpt::beside {

// On the dynamic linker's stack. The order is rt_sigreturn(2)'s.
struct Beginning {
  ucontext_t state;
  uint64_t fs_base;
};

// mask: signals that the program begins with blocked.
Beginning beginning_at(const user_regs_struct& entry, uint64_t mask);

// When the tracer has ended, nothing is left of it: no child, no SIGCHLD. libc may not be used any more.
[[noreturn]] void begin_behind_tracer(int tracer, const Beginning* beginning);

}  // namespace ckpt::beside
