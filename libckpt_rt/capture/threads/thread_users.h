// Users, groups and capabilities of threads that were not asked in their handlers, as they are under filters
// of system calls (seccomp): each thread of a container is.
//
// Owner:     nobody: what is found is written into the threads' slots, which are part of the image.
// Callers:   the agent, threads standing, before their memory is read.
// Source:    /proc/self/task/TID/status, proc(5), which has all but the secure bits: those are taken to be
//            the process's.
#pragma once

#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt {

void look_up_users_of_unasked(ThreadSlot* threads);

}  // namespace ckpt
