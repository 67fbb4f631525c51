// The notes of a core file: what it says about process and threads, apart from memory. core(5), elf(5).
//
// Owner:     cli. Ordinary code, one thread.
// No NT_SIGINFO: no signal ended the process, and pr_cursig is 0. Signals that were pending are in
// pr_sigpend. A main thread that had already exited has no registers and no note.
// Callers:   the writer of core files.
#pragma once

#include <string>

#include "image/read/saved_memory.h"

namespace ckpt::cli {

struct CoreNotes {
  std::string bytes;
  uint64_t threads = 0;
};

Result<CoreNotes> make_core_notes(const ImageMeta& meta, SavedMemory& memory);

}  // namespace ckpt::cli
