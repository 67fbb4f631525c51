// The keeper of one host of a job, as that host's agent deals with it.
//
// Owner: cli, the agent. Its one thread. Callers: the agent, `ckpt back-part`.
#pragma once

#include <string>

#include "cli/keeper/exchange_process.h"

namespace ckpt::cli {

// A part as a path of this process while this lives, in whichever memory or directory it is.
struct ReachedPart {
  PartInKeeper part;
  std::string path;  // empty: no keeper answers
};
ReachedPart reach_part(const std::string& part);

// Where images of a host go: `directory`, or the directory of its keeper, which is started if it does not
// run.
struct HostImages {
  std::string name;  // as CKPT_DIR has it
  std::string path;  // as a path of this process while this lives
  ScopedFd keeper_directory;
};
// start: what the head says at the start, with "keeper" or "part".
Result<HostImages> images_of_host(const std::string& directory, const Json& start);

// The answer to "have", before a restart: is the part that the head names here? Starts its keeper if it does
// not run.
Json has_part(const Json& question);

// Of the job's parts in `images`, a keeper's directory or another, all go but those that are to stay, each
// with its checks. A part that a process reads stays until the next time.
void give_up_parts(const std::string& images, const std::string& job, const std::vector<std::string>& stay);

}  // namespace ckpt::cli
