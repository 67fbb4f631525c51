// Flags that the program gives its mappings, noted when it does. What they are for: memory_advice.h.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it. Callers: note*: the program's
//            threads, in interposed calls; the others: the agent.
// Never:     takes a lock, allocates, writes errno.
#pragma once

#include <atomic>
#include <span>

#include "base/memory/arena.h"

namespace ckpt::memory_advice {

// Before madvise(2).
void note(Addr start, size_t length, int advice);
// Before process_madvise(2), of which the memory is not known.
void note_unplaced(int advice);
// Before mseal(2).
void note_seal();
// mmap(2) has given this memory.
void note_mapping(Addr start, size_t length, int mmap_flags);

// One use of a flag. Written once; `set` and `cleared` are MappingFlags.
struct Note {
  AddrRange range;
  uint32_t set = 0, cleared = 0;
  std::atomic<bool> complete = false;
};
// In the order in which they were given.
std::span<const Note> notes();
// There may be flags that are in no note.
bool kernel_must_be_asked();

}  // namespace ckpt::memory_advice
