// Named points of a checkpoint, at which a test kills or stops a process, or lets a thread wait.
//
// Owner:     base. Callers: threads of ours, and the child of mode fork. One load where nothing is wanted,
//            which is everywhere but in tests.
// Never:     allocates, touches errno.
//
// CKPT_TEST_POINT="POINT[@PROGRAM]=kill|stop|leave|wait[:N]" in the environment of a process: when it comes
// to that point for the Nth time (1 if it is not said, 0: each time), the program gets SIGKILL or SIGSTOP. A
// child of mode fork that comes to it gets the same signal; with `leave` it gets SIGKILL, and the program
// nothing. With `wait` nobody gets a signal: the thread makes the file PID.waits (ten digits) in the working
// directory, and goes on when that file is gone. With PROGRAM only the program of that name.
//
// Points of jobs begin with "member." or "coordinator.", of restarts with "restart." or "connect.", of going
// back with "back.", of images in the memory of others with "exchange.", "save." or "disk.", of a thread that
// traces others with "tracing.". The others are
// those of one process, one checkpoint comes to each at most once; tests/points/points.py has the list of
// them, and fails if it is not complete.
#pragma once

#include <atomic>

namespace ckpt::points {

extern constinit std::atomic<const char*> wanted;
void reached(const char* point);

// relaxed: set before the program's first instruction.
inline void at(const char* point) {
  if (wanted.load(std::memory_order_relaxed) != nullptr) reached(point);
}

// A child of mode fork is about to be made: what it comes to counts with what its predecessors came to.
void child_follows();

// A restarted program comes to none any more.
inline void forget() { wanted.store(nullptr, std::memory_order_relaxed); }

// In the constructor. All of it stays valid; *pid is the program's, also in a child of mode fork.
void want(const char* text, const char* program, const int* pid);

}  // namespace ckpt::points
