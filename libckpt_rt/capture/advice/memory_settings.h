// What the program has said of parts of its memory that no mapping shows, and that a restart says again:
// guard regions (MADV_GUARD_INSTALL), policies (mbind(2)), seals (mseal(2)).
//
// Owner:     libckpt_rt, in its own data, so that an image has it: kMost parts of each kind.
// Callers:   capture_stopped: the agent, threads standing. say_again: the
//            leader of a restart, when all memory is mapped and nothing of it will be mapped elsewhere.
// Never:     looks where nobody has called for such a thing: then a stop pays nothing. Policies that were
//            given past libc are not seen; seals and guard regions are where the flags of mappings are read
//            (memory_advice.h).
//
// Only from where to where such calls went is noted (settings_reach.h). The kernel tells in the stop which
// settings hold there.
#pragma once

#include <span>

#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt::memory_settings {

inline constexpr uint32_t kMost = 1024;

// False: there are more than kMost. The calling thread, one of ours, has no memory policy of its own
// afterwards.
bool capture_stopped(std::span<const Mapping> mappings);
// LibraryNotes of what could not be said again.
uint32_t say_again();

}  // namespace ckpt::memory_settings
