// What checkpoints of a program have cost so far, from the log of its image directory.
//
// Owner: cli. Ordinary code, any thread. Callers: `ckpt plan`.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace ckpt::cli {

struct Measured {
  unsigned checkpoints = 0;
  double pause = 0, durable = 0;  // medians, seconds
  uint64_t bytes = 0;             // median of what was written
  uint64_t full_bytes = 0;        // of the last full image
};

// pid 0: of all programs that have written there. Errors: kNotFound when there is no log, or none of these in
// it.
Result<Measured> read_measured(const std::string& directory, int pid);

}  // namespace ckpt::cli
