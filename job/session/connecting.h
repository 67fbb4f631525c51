// Holding connect(2) while servers take what waits to be accepted: what a client has written into a
// connection that nobody has accepted can be read by nobody, and under load there is always such a one
// (docs/jobs.md).
//
// Owner:     job. Callers: hold(), release…(): the agent. await(): threads of the program inside
//            connect; raw system calls, no errno. Children and restarts: reset().
// Never:     holds a thread for more than kMostNs and the time of a stop, a call that has a time limit for
//            more than kMostOfLimitedNs, a thread in a critical section (the stop would wait for it), a
//            socket that makes no connection of a stream, or anybody when all threads of the process stand.
#pragma once

#include <cstdint>

#include "base/locks/futex.h"

namespace ckpt::job::connecting {

inline constexpr int64_t kMostNs = 1'000'000'000, kMostOfLimitedNs = 100'000'000;

extern constinit FutexWord held;

bool wait_slowly(int fd);
// Before a connection is made. One load when nothing is held. True: the program's handler of a signal ran
// meanwhile, without SA_RESTART.
inline bool await(int fd) {
  lock_ranks::waits_for(LockRank::kCreationGates);
  // relaxed: a connection that this read let through is found when all stand, as before.
  return held.load(std::memory_order_relaxed) != 0 && wait_slowly(fd);
}

void hold();
void release();
bool is_holding();
// CLOCK_MONOTONIC, ns: when they are let go at the latest.
int64_t holds_until();
// Nobody is held for longer than kMostNs: the agent calls this while it waits for others. True: it was late.
bool release_if_late();
// A forked child, and a restarted process: nobody holds them.
void reset();

}  // namespace ckpt::job::connecting
