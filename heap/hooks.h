// jemalloc's extent hooks: it gets its memory from our regions (region.h), and says what is free.
//
// Owner:     libckpt_heap. Callers: jemalloc, in any thread of the program, with locks of its own held.
// Never:     calls malloc, takes a lock.
// Source:    jemalloc(3), arena.<i>.extent_hooks.
#pragma once

#include <jemalloc/jemalloc.h>

namespace ckpt::heap {

extern extent_hooks_t extent_hooks;

}  // namespace ckpt::heap
