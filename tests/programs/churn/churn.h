// Memory, threads, libraries and processes that come and go all the time, with contents that are
// checked before they go.
//
// Owner: tests/programs/churn. Each function is one exercise and returns its result line.
#pragma once

#include "tests/programs/victim.h"

namespace churn {

// mmap, munmap of a whole or a part, mremap, madvise, mprotect, MAP_FIXED over what was there.
std::string mappings(uint64_t iterations);
// malloc, realloc and free of small and large blocks, freed by other threads than allocated them.
std::string blocks(uint64_t iterations);
// Threads that start, use thread-local storage and end, joined or detached.
std::string threads(uint64_t iterations);
// A library with data and thread-local storage is loaded, used and unloaded.
std::string libraries(uint64_t iterations);
// fork + _exit, fork + exec, vfork + exec, posix_spawn; the child checks its copy of memory.
std::string processes(uint64_t iterations);

}  // namespace churn
