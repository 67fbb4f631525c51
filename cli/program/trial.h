// ckpt check -- PROGRAM: what of a program can be saved. The command looks at the program, runs it for a
// while, and takes a checkpoint, which is checked and thrown away.
//
// Owner: cli. Ordinary code, one thread. The program and all that it has started are killed at the end.
// Callers: `ckpt check`.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "cli/program/machine.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

struct Trial {
  std::vector<Finding> findings;
  // kOk all comes back (what does not, and is no hindrance, is a finding), kNotRestartable, kUnsupported: it
  // cannot be saved, kTimeout: it had ended before the checkpoint, or was interrupted, or another code of the
  // commands.
  ExitCode exit = ExitCode::kOk;
};

// A signal has ended the trial: of a caller that has it blocked, this is the answer.
Trial& interrupted(Trial& trial);

// Of an answer of `ckpt now`: what comes back changed, and what cannot come back. effect: of the latter.
void add_notes_of_images(const Json& answer, const char* effect, std::vector<Finding>& findings);

// At which moment of the program the checkpoint is taken.
struct TrialMoment {
  std::string file;      // it exists; empty: from the start
  int64_t after_ns = 0;  // so long after that the program runs, with the library in it started
};

// Returns when the moment is there (false), or as soon as ends_within(ns) has said that the trial is over
// (true).
template <typename EndsWithin>
bool ends_before(const TrialMoment& moment, const EndsWithin& ends_within) {
  constexpr int64_t kLookNs = 5'000'000;
  while (!moment.file.empty() && access(moment.file.c_str(), F_OK) != 0) {
    if (ends_within(kLookNs)) return true;
  }
  return ends_within(moment.after_ns);
}

Trial try_program(const std::vector<std::string>& program, const TrialMoment& moment);

}  // namespace ckpt::cli
