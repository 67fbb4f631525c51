// Where the kernel will put the restarted program's new mappings.
//
// Owner:     restart. Callers: main.cc and restart_job.cc, once they know the image: nothing that they have
//            done by then must be lost by an exec.
// The kernel fixes that place at exec, from the limit on the stack: just below the stack and the room it
// may grow into. The restarted program keeps the choice made for ckpt-restart, but has its own stack
// at its own place. A new mapping just below that stack would end its growth, so ckpt-restart
// executes itself once more with a limit that puts the place below the saved stack's room.
#pragma once

#include <span>

#include "image/read/image_meta.h"

namespace ckpt {

// Executes this program again when that is needed and allowed; returns when it is not or has been done.
// metas: of all processes that come back, which are forked from this one and so have the place in common.
void choose_mmap_base(std::span<const ImageMeta* const> metas, char** argv);

}  // namespace ckpt
