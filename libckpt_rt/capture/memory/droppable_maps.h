// Droppable memory (MAP_DROPPABLE): which a restart maps so again, without its contents.
//
// Owner:     libckpt_rt. Callers: the agent, threads standing, when the mappings are known.
// Never:     touches the memory, or leaves it other than it was.
//
// The flags of mappings are read before the stop. The program may have unmapped droppable memory since, and
// libc or the program itself may have mapped ordinary memory there, by a call that nobody sees: to leave out
// what is in it would lose it. So the kernel is asked again, by a question that costs nothing for other
// memory: it never lets a userfaultfd have droppable memory.
#pragma once

#include <span>

#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt {

// kMapDroppable stays where it is certain. Where it cannot be, kMapUnsure takes its place (lost_mappings.h).
// filtered: the kernel is not asked.
void confirm_droppable(std::span<Mapping> map, bool filtered);

}  // namespace ckpt
