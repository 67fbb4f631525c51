// How much memory the program has, and how much room the lists about it take.
//
// Owner:     one attempt, while it prepares. Callers: the agent, while the program runs.
// Never:     allocates: it reads files of /proc through a buffer on its stack.
#pragma once

#include <cstdint>

namespace ckpt {

// Bytes that the process has mapped, and bytes that it has in memory; in how many mappings, and what the
// kernel's list of them is long, bytes; how much of it is shared anonymous memory, bytes.
struct MemorySize {
  uint64_t mapped = 0, resident = 0, mappings = 0, maps_text = 0, shared = 0;
};
MemorySize memory_size();

// Address space for lists whose length is not known ahead. RLIMIT_AS makes it smaller: the program wants most
// of what is left for itself. The lists of mappings, whose length is known ahead, come on top.
uint64_t list_bytes(const MemorySize& memory);
// Upper bound of the number of segments of so many bytes: the blocks of 2 MiB in which a page exists.
uint64_t most_segments(const MemorySize& memory, uint64_t segment_bytes);
// The most that tables of segments can take: three times (the table, what is added to it, and both merged).
uint64_t table_bytes(const MemorySize& memory, uint64_t segment_bytes);

}  // namespace ckpt
