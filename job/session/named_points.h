// Named points of a job's checkpoint, at which a test kills, stops or ends a process.
//
// Owner:     job. Callers: agents. One load where nothing is wanted, which is everywhere but in tests.
//
// CKPT_TEST_POINT="POINT[@PROGRAM]=kill|stop[:N]" in the environment of a process: when it comes to that
// point for the Nth time (1 if it is not said) it sends itself SIGKILL or SIGSTOP; with PROGRAM only if it
// has that name.
#pragma once

#include <atomic>

namespace ckpt::job::points {

extern constinit std::atomic<const char*> wanted;
void reached(const char* point);

// relaxed: set before the program's first instruction.
inline void at(const char* point) {
  if (wanted.load(std::memory_order_relaxed) != nullptr) reached(point);
}

// In the constructor; text stays valid.
void want(const char* text);

}  // namespace ckpt::job::points
