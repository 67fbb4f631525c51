// What /proc/PID/fdinfo says of a ring.
//
// Owner: rings. Callers: the agent, threads standing. Never: allocates. The text has a line for each
// completion that waits, so that it may be megabytes: it is read in pieces.
#pragma once

#include "libckpt_rt/capture/rings/known_rings.h"

namespace ckpt::rings {

// tid: of a thread with the program's descriptors. Completions that are held back go to `held`, as many as
// there is room for.
RingState read_ring_info(int tid, int fd, std::span<HeldBack> held);

}  // namespace ckpt::rings
