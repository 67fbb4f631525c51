// What the program has told the kernel about its memory, kept to be looked up.
//
// Only /proc/self/smaps tells the flags of a mapping, and it counts the pages of each under the lock that
// mmap, munmap and brk wait for: tens of milliseconds for each GiB. So it is read of small programs, where
// reading costs nothing. The file is also read where flags are known to be set that change what memory means
// (DONTFORK, WIPEONFORK, MERGEABLE, locked, huge pages of hugetlbfs, …). Otherwise flags that only say how
// memory is used (HUGEPAGE, SEQUENTIAL, NORESERVE, …) come from what was noted (advice_notes.h).
//
// Not seen: flags that the program sets by system call instructions of its own, in a program of more than
// kSmallBytes.
//
// Owner: libckpt_rt. Callers: the agent, while the program runs.
#pragma once

#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt::memory_advice {

// Memory in use below which smaps is read all the same.
inline constexpr uint64_t kSmallBytes = 32 << 20;

// The flags of all mappings, one way or the other. resident: bytes of memory that the program has.
Result<void> find_flags(MemoryMap& map, uint64_t resident);
// Threads stand. What the program has said of its memory since.
void add_recent_flags(MemoryMap& map);

}  // namespace ckpt::memory_advice
