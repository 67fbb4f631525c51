// What the kernel writes to in each system call: the table of the guard.
//
// A call that is not in the table, or of which its arguments do not tell where it writes, waits until the
// guard is closed. So a missing line costs time and never truth; a wrong line would cost a program its
// EFAULT.
//
// Owner:     libckpt_rt. Callers: guard/dispatch.cc, in a handler of the guard.
// Source:    the manual page of each call, and the kernel's copy_to_user in it.
#pragma once

#include "base/units.h"

namespace ckpt::guard {

enum class Verdict {
  kPass,  // all that it writes to was given to `visit`
  kWait,
};

// args: rdi, rsi, rdx, r10, r8, r9. visit(context, range) for each range; false from it: kWait.
struct Visitor {
  bool (*visit)(void* context, AddrRange range);
  void* context;
};
Verdict each_output(long nr, const long* args, const Visitor& visitor);

// Does the call take its memory away, or change what it is?
bool changes_mappings(long nr);

// The signal mask that the call puts in place of the thread's while it waits. False: none.
bool mask_of_call(long nr, const long* args, uint64_t* mask);

}  // namespace ckpt::guard
