// What the program's wrappers of munmap, mremap, madvise, brk … call before memory goes: segments in it
// that are not in a buffer yet are copied first (copier.h).
//
// Owner:     libckpt_rt. Callers: before_release: any thread of the program, also in a signal handler.
//            open/close: the agent.
// Never:     allocates, touches errno. Costs one load when no copy is under way.
#pragma once

#include "copier/copier.h"

namespace ckpt::release_guard {

void before_release(AddrRange range);

// From the stop on, until close(): ask this copier.
void open(Copier& copier);
// Returns when no thread is inside before_release any more.
void close();
void reset();  // restart, forked child

}  // namespace ckpt::release_guard
