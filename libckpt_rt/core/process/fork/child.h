// A child of the program corrects the library's state, which it has from its parent, when that state is first
// used.
//
// Most children end, or execute another program, without a checkpoint, and the kernel copies each page that a
// child writes to.
//
// Owner:     libckpt_rt; put_child_right() is defined in entry/child.cc, which knows all that it has to
//            correct.
// Callers:   code that begins to use the library's state in a process that may be such a child, before it
//            looks at this_process.pid: the handlers of our signals, the functions of ckpt_rt.h, hooks. Any
//            thread, also inside a signal handler.
// Never:     allocates, touches errno.
#pragma once

#include "libckpt_rt/core/process/fork/own_page.h"

namespace ckpt {

void put_child_right();

inline bool is_new_child() {
  // acquire: pairs with the store of pid, so that this thread sees what another one has corrected.
  return own_page::page->pid.load(std::memory_order_acquire) == 0;
}

inline void know_child() {
  if (is_new_child()) put_child_right();
}

}  // namespace ckpt
