// The registrations of membarrier(2): for what the program may ask the kernel later without an error.
//
// Owner:     libckpt_rt. Callers: the agent, threads standing; the leader at restart.
// Source:    membarrier(2), kernel/sched/membarrier.c.
#pragma once

#include <cstdint>

namespace ckpt {

// MEMBARRIER_CMD_REGISTER_*, or'ed. Kernels before 6.3 do not tell: they are asked for the barriers, which
// they refuse to a process that is not registered.
uint32_t membarrier_registrations();
void register_for_membarrier(uint32_t registrations);

}  // namespace ckpt
