// Every kind of lock, held or waited for at any time, with progress and exclusion checked.
//
// Owner: tests/programs/locks. Each function is one exercise and returns its result line.
#pragma once

#include "tests/programs/victim.h"

namespace locks {

struct MutexKind {
  int type;
  bool robust, inherits, shared;
};

// Three threads take turns; the holder sometimes sleeps so that the others wait in the kernel.
std::string mutexes(const MutexKind& kind, uint64_t iterations);
// Threads end while they hold a robust mutex; the next one gets EOWNERDEAD and repairs it.
std::string owner_dies(uint64_t iterations);
std::string conditions(uint64_t iterations);
std::string barriers(uint64_t iterations);
std::string rwlocks(uint64_t iterations);
std::string semaphores(uint64_t iterations);
std::string spinlocks(uint64_t iterations);
std::string once(uint64_t iterations);

}  // namespace locks
