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
// Before munmap(2).
void note_unmapping(Addr start, size_t length);

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

// Flags are read while the program runs, and the program goes on giving some, and maps memory, until it
// stands. All uses from begin_recent() on are kept, in their order, until end_recent(): begun before mappings
// are listed, of which the flags are read.
void begin_recent();
// Threads stand. visit(range, set, cleared) of each, the first one first; of more than kMostRecent, the last.
inline constexpr uint64_t kMostRecent = 1024;
template <typename Visit>
void end_recent(Visit visit);

namespace recent {

// A use, in the place of its number modulo kMostRecent. number: counted from 1, written last.
struct Use {
  AddrRange range;
  uint32_t set = 0, cleared = 0;
  std::atomic<uint64_t> number = 0;
};
extern constinit std::atomic<bool> kept;
extern constinit std::atomic<uint64_t> count;
extern uint64_t first;  // of the agent
const Use& at(uint64_t number);

}  // namespace recent

template <typename Visit>
void end_recent(Visit visit) {
  recent::kept.store(false, std::memory_order_relaxed);
  const uint64_t end = recent::count.load(std::memory_order_relaxed);
  uint64_t n = recent::first;
  if (end > n + kMostRecent) n = end - kMostRecent;
  while (n < end) {
    const recent::Use& use = recent::at(++n);
    // acquire: the rest of it. Another number: its thread stands before it has written it.
    if (use.number.load(std::memory_order_acquire) == n) visit(use.range, use.set, use.cleared);
  }
}

}  // namespace ckpt::memory_advice
