// Holding what changes who is in a job while its checkpoint is taken: the creation of processes while they
// are listed and stopped; their end, and the execution of another program, until their images are written.
//
// Owner:     job. Callers: hold…(), release(), release_end(): the agent. await…(): threads of the program
//            inside fork, vfork, posix_spawn, exec and exit; raw system calls, no errno. Children and
//            restarts: reset().
// Never:     holds a child of vfork: its parent could not stand.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/locks/futex.h"

namespace ckpt::job::creation {

extern constinit FutexWord held, end_held;

void wait_slowly(FutexWord& word);
// Before a process is made. One load when nothing is held.
inline void await() {
  lock_ranks::waits_for(LockRank::kCreationGates);
  // relaxed: a process that is made because this read came too early is found when the members are listed
  // again.
  if (held.load(std::memory_order_relaxed) != 0) wait_slowly(held);
}
// Before the process ends or executes another program.
inline void await_end() {
  lock_ranks::waits_for(LockRank::kCreationGates);
  // relaxed: an end that this read let through is noticed, and the checkpoint is taken again.
  if (end_held.load(std::memory_order_relaxed) != 0) wait_slowly(end_held);
}

void hold();
void release();
void hold_end();
void release_end();
// A forked child, and a restarted process: nobody holds them.
void reset();

}  // namespace ckpt::job::creation
