// The priority of work that is done while a program computes: checks of its parts, copies of them on a disk.
//
// Owner: cluster/keeper; processes of keepers. Called once, by a process's first thread, whose priority the
//        others inherit, or by a thread for itself.
// Callers: the processes of exchanges, of copies to disk, and of a keeper.
// Never: idle priority (SCHED_IDLE). Beside a program that keeps all processors it has a three-hundredth of
//        one, and a checkpoint does not count before its checks are made.
#pragma once

#include <sched.h>
#include <unistd.h>

namespace ckpt::keeper {

// A tenth of a processor where others keep all of them, all of one that nobody else wants; and nobody is
// interrupted for it.
inline void take_low_priority() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
  (void)!nice(10);
}

}  // namespace ckpt::keeper
