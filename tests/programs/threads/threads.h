// Threads of every kind: many, raw, detached, named, bound, with destructors and exceptions.
//
// Owner: tests/programs/threads. Each function is one exercise and returns its result line.
#pragma once

#include "tests/programs/victim.h"

namespace threads {

// A token is handed round a ring of many threads that all wait.
std::string crowd(uint64_t iterations);
// Threads made by clone(2) without libc, with and without a TLS register of their own.
std::string raw(uint64_t iterations);
// Names, affinity, scheduling policy, nice value, timer slack, stack limits stay as they were set.
std::string attributes(uint64_t iterations);
// Stacks that the program has given to its threads (pthread_attr_setstack).
std::string own_stacks(uint64_t iterations);
// C++ exceptions are thrown through many frames; destructors run once each.
std::string exceptions(uint64_t iterations);
// thread_local objects keep their values and are destroyed at the end of their thread.
std::string locals(uint64_t iterations);
// Detached threads that outlive the one that made them.
std::string detached(uint64_t iterations);

}  // namespace threads
