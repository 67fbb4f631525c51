// All processes of a job go back to one checkpoint, or none does (docs/back.md, "A job").
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <string>

#include "cli/ask/asker.h"

namespace ckpt::cli {

struct JobBackOptions {
  std::string directory;  // of the checkpoint
  AskLimits limits;
  bool anyway = false;
};

// The answer has: directory, sequence, members, ended, pause_ns (of the member that stood longest), bytes, threads,
// total_ns, note (0..n).
Result<Answer> back_job(const JobBackOptions& options);

}  // namespace ckpt::cli
