// An image as an ELF core file, for gdb and everything else that reads core files.
//
// Owner:     cli. Ordinary code, one thread.
// Callers:   `ckpt core`.
// Sparse:    holes and zero pages take no space. Contents that the image does not hold, as they are in a
//            mapped file (program, libraries), are left to the reader, which finds the file by NT_FILE.
// Never:     leaves half a core file under its name.
#pragma once

#include <functional>
#include <string>

#include "image/read/saved_memory.h"

namespace ckpt::cli {

struct CoreSize {
  uint64_t file_bytes = 0;  // with holes
  uint64_t memory_bytes = 0;
  uint64_t threads = 0;
};

using CoreProgress = std::function<void(uint64_t done, uint64_t total)>;

// Mode 0600, as the image: it holds the same secrets. A file of that name is replaced.
Result<CoreSize> write_core(const ImageChain& image, SavedMemory& memory, const std::string& path,
                            const CoreProgress& progress);

}  // namespace ckpt::cli
