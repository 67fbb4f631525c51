// A restart may let the program run before all of its memory is there (docs/restart.md, "Lazy restart").
//
// Owner:     libckpt_rt. Callers: begin: the restart entry. await_end: the agent. await_all: a thread of the
//            program that a tracer is to have again.
// Never:     blocks another thread of the program.
#pragma once

#include <cstdint>

namespace ckpt::loading {

// gate: RestartArgs::loading_gate.
void begin(uint64_t gate);

// Returns when all memory is there: the loader's userfaultfd is gone then, and all memory can be saved.
void await_end();
// The same, by a thread that comes while the agent may be there.
void await_all();

}  // namespace ckpt::loading
