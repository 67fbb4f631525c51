// All processes of a job go back to one checkpoint, or none does (docs/back.md, "A job").
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt back`, `ckpt back-part`.
#pragma once

#include <string>

#include "cli/ask/asker.h"

namespace ckpt::cli {

class OtherHosts;

struct JobBackOptions {
  std::string directory;  // of the checkpoint
  AskLimits limits;
  bool anyway = false, trust = false;
  OtherHosts* others = nullptr;  // of a job over several hosts, whose processes here these are
};

// The answer has: directory, sequence, members, ended, pause_ns (of the member that stood longest), bytes,
// threads, total_ns, note (0..n).
Result<Answer> back_job(const JobBackOptions& options);
// `ckpt back-part`: the processes of one host, with those of others. Its standard input is a socket to the
// host's agent, which has started it. First comes a plan {"host", "part": DIRECTORY, "first": the part's
// first process, "connections": [...], "lost": where a host has died}; then lines of OtherHosts::come_to()
// and their answers {"step": STEP}; in the end {"say": "done", ...} or {"say": "failed", "code", "text"}.
// (back_part.cc)
ExitCode run_back_part();

}  // namespace ckpt::cli
