// Shared memory, anonymous or of System V, that several members of a job map: one of them saves it for all
// (docs/shared_memory.md).
//
// Owner:     a checkpoint run. Callers: the agent.
// Without a session both return at once.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt {

// Ahead of job::prepared(): what this process maps of such memory. protects: it is protected by all that map
// it, where it can be. The list stays in the arena.
Result<void> offer_shared_memory(std::span<const Mapping> map, bool protects, Arena& arena);

// In the stop, with the map of the stop: what another member saves becomes kMapElsewhere, and is not copied.
// An error: this process was to save what it does not map any more; the job's checkpoint is to be taken
// again.
Result<void> leave_to_savers(std::span<Mapping> map);

}  // namespace ckpt
