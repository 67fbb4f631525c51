// When the program began, by CLOCK_REALTIME in ns: a file that was born later it, or its job, has made.
//
// Owner:     libckpt_rt. Callers: the agent, also in the stop.
// Never:     fails: 1 where the kernel does not say. In an image: the first beginning after a restart too.
#pragma once

#include <cstdint>

namespace ckpt {

int64_t program_began_ns();

}  // namespace ckpt
