// A child of the program: what it has of the parent's state is put right when it is first used.
//
// Most children end, or become another program, without a checkpoint, and each page that one of them writes
// to is copied for it.
//
// Owner:     libckpt_rt; defined where all that is put right is known (entry/child.cc).
// Callers:   whoever begins to use the library's state in a process that may be such a child, before it looks
//            at this_process.pid: the handlers of our signals, the functions of ckpt_rt.h, hooks. Any thread,
//            also inside a signal handler.
// Never:     allocates, touches errno.
#pragma once

#include "libckpt_rt/core/process/own_page.h"

namespace ckpt {

void put_child_right();

inline bool is_new_child() {
  // acquire: what another thread has put right.
  return own_page::page->pid.load(std::memory_order_acquire) == 0;
}

inline void know_child() {
  if (is_new_child()) put_child_right();
}

}  // namespace ckpt
