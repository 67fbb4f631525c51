// A thread that did not stop: its backtrace goes into the log of the image directory.
//
// Owner:     libckpt_rt. Callers: the agent, with all threads running again.
// How:       `ckpt backtrace PID TID` (libunwind, ptrace) as a process of its own, the ckpt beside this
//            library. The program does not see it: its parent is a child of ours without an exit signal.
//            Where ptrace is not allowed the log says so.
#pragma once

#include <string_view>

#include "base/memory/arena.h"

namespace ckpt {

// library_path: of libckpt_rt.so. Memory for their stacks from `arena`.
void log_backtrace(int dir_fd, std::string_view library_path, int pid, int tid, Arena& arena);

}  // namespace ckpt
