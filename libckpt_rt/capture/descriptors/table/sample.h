// What one descriptor is at this moment, without changing anything about it.
//
// Owner:     libckpt_rt, descriptors.
// Callers:   sample_own_descriptor: a stopped thread of the program in its handler, or the agent on a
//            duplicate; raw system calls only, a few hundred bytes of stack.
//            sample_from_outside: the agent, also while the program runs.
// Never:     moves an offset: lseek(fd, 0, SEEK_CUR) only reads it.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "libckpt_rt/capture/descriptors/table/descriptor.h"

namespace ckpt {

// sample.error is EBADF when the descriptor is closed. partner: -1, or a descriptor of the same table
// to compare with.
void sample_own_descriptor(int fd, int partner, DescriptorSample& sample);

// False when it is closed. Leaves out what /proc does not say: seals, queued bytes, owner.
bool sample_from_outside(int tid, int fd, std::span<char> text, Arena& arena, DescriptorSample& sample);

}  // namespace ckpt
