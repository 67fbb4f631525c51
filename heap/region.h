// Memory for the heap: regions of address space, reserved at once and used from their beginning on, of which
// nothing is ever unmapped. Which of its pages are free, and whether they hold something, is known
// (base/protocol/heap_protocol.h).
//
// A page is in one of these states:
//
//   unused   behind used_end: cannot be read                              extend(): committed
//   used     bit clear                                                    decommit(): stale, or empty
//   stale    bit set: free, with what the program left in it              commit(): used, filled with zeros
//   empty    bit clear: free, and given back to the kernel: reads as 0    commit(): used
//
// decommit() leaves pages stale while there are few of them: that costs no system call, no checkpoint has to
// copy them, and giving memory back while one is under way would make it copy them first (release_guard.h).
// More than a share of the heap is given back.
//
// Owner:     libckpt_heap. Callers: jemalloc's extent hooks, in any thread of the program.
// Never:     calls malloc; takes a lock: a forked child finds nothing held. A page belongs to one extent of
//            jemalloc, and jemalloc calls for one extent one thing at a time; what is shared are words of
//            bits, and counters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/protocol/heap_protocol.h"

namespace ckpt::heap {

// size bytes of zeros that may be written. at: there and nowhere else, or nullptr. nullptr: no memory, or not
// there. alignment: a power of two.
void* extend(void* at, size_t size, size_t alignment);
// Free memory gets used: reads as zero when this returns.
void commit(void* start, size_t size);
// Used memory is free. False: it stays as it is, and committed.
bool decommit(void* start, size_t size);
// Do the two lie in the same region, or both in none?
bool may_merge(const void* a, const void* b);

// The kernel is asked for huge pages from now on, wherever memory is as large as one.
void ask_for_huge_pages();

// Bytes of stale pages, in all regions.
uint64_t stale_bytes();
// The region of an address, or nullptr.
HeapRegion* region_of(const void* p);

}  // namespace ckpt::heap
