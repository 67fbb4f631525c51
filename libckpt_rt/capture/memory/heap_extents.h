// Which pages of the program's heap are free, where libckpt_heap.so is preloaded
// (base/protocol/heap_protocol.h): they need not be saved. What counts is the instant of the stop: before the
// heap uses such a page afterwards it clears the page's bit, and then fills the page with zeros.
//
// Owner:     libckpt_rt. Callers: the agent, in the stop.
// Never:     allocates but from the Arena of the list; touches the program's memory but through StillMemory.
#pragma once

#include "base/memory/arena.h"
#include "base/units.h"

namespace ckpt {

class StillMemory;

namespace heap_extents {

// libckpt_heap.so is there.
bool preloaded();
// Bytes of the heap in no region: what is free in them is saved until it is given back.
uint64_t bytes_outside();
// Appends the free pages, in address order. False: no memory.
[[nodiscard]] bool collect_free(StillMemory& memory, Arena& arena, ArenaVector<AddrRange>& free);
// Takes what is free out of runs[first] and those behind it. free: as collected. False: no memory.
[[nodiscard]] bool leave_out(std::span<const AddrRange> free, ArenaVector<AddrRange>& runs, size_t first);

}  // namespace heap_extents
}  // namespace ckpt
