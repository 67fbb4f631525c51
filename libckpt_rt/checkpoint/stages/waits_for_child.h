// Waits until no thread of the program waits in the kernel for a child with memory of its own (CLONE_VFORK
// without CLONE_VM): such a thread cannot be stopped, and its child is a process of the job, which a
// checkpoint would keep from executing the program that the thread waits for.
//
// Owner:     nobody; no state. Callers: the agent, before anything of the program is held.
// Never:     looks where no such child was made by libc's clone or syscall. Waits longer than kLongestNs.
// Source:    clone(2), proc(5) on /proc/PID/task/TID/syscall.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"

namespace ckpt::waits_for_child {

inline constexpr int64_t kLongestNs = 30'000'000'000;

Result<void> await_none(Arena& arena);

}  // namespace ckpt::waits_for_child
