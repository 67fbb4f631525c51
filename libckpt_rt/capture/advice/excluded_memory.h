// Ranges that the program wants out of its images (ckpt_rt.h).
//
// Owner:     libckpt_rt. Callers: exclude/include: threads of the program. next_excluded: the agent, while
//            threads stand still.
#pragma once

#include "base/units.h"

namespace ckpt::excluded_memory {

// False: the table is full.
bool exclude(AddrRange pages);
bool include(AddrRange pages);
// The first excluded part of `run`; empty when there is none.
AddrRange next_excluded(AddrRange run);

}  // namespace ckpt::excluded_memory
