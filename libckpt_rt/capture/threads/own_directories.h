// Threads with a working directory and a umask of their own: unshare(CLONE_FS), as samba's workers have.
//
// Owner:     libckpt_rt, in its own data, so that an image has it: kMost threads. Others are named at the
//            checkpoint.
// Callers:   note_unshare: a thread of the program. capture_stopped: the agent, threads standing. is_saved:
//            the agent. enter_as_process, enter: a thread of a restart, for itself.
// Never:     looks for such threads where nobody has called unshare(2) by libc: of those made past it the
//            checkpoint says so.
//
// At the checkpoint kcmp(2) tells which threads have not what the first one has, and /proc/PID/task/TID what
// it is. At a restart all threads are made with the first one's; such a thread then calls unshare(2) itself,
// and goes where it was, before it gives up the process's rights, else as the user that it is.
#pragma once

#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt::own_directories {

inline constexpr uint32_t kMost = 64;

void note_unshare();
void capture_stopped(const ThreadSlot* threads, int first);
// The thread comes back with what it has of its own.
bool is_saved(int tid);
// With the rights of the process. 0, or why the thread cannot have a directory of its own: it may not go
// anywhere then, for all would. is_there: the thread is where it was, or is no such thread.
long enter_as_process(int tid, bool& is_there);
// Else, with its own. 0, or why it cannot be there.
long enter(int tid);

}  // namespace ckpt::own_directories
