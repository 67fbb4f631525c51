// A restart may let the program run before all of its memory is there (docs/restart.md, "Lazy restart").
//
// Owner:     libckpt_rt. Callers: begin: the restart entry. await_end: the agent.
// Never:     blocks a thread of the program.
#pragma once

#include <cstdint>

namespace ckpt::loading {

// gate: RestartArgs::loading_gate.
void begin(uint64_t gate);

// Returns when all memory is there: the loader's userfaultfd is gone then, and all memory can be saved.
void await_end();

}  // namespace ckpt::loading
