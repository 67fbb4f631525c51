// The keeper of one host of a job, as that host's agent deals with it.
//
// Owner: cli, the agent. Its one thread.
#pragma once

#include <string>

#include "cli/keeper/exchange_process.h"

namespace ckpt::cli {

// A part as a path of this process while this lives, in whichever memory or directory it is.
struct ReachedPart {
  KeptPart kept;
  std::string path;  // of a part that no keeper has: of nothing
};
ReachedPart reach_part(const std::string& part);

// Where images of a host go: `directory`, or its keeper's, which is started if it is not there.
struct HostImages {
  std::string name;  // as CKPT_DIR has it
  std::string path;  // as a path of this process while this lives
  ScopedFd kept;
};
// start: what the head says at the start, with "keeper" or "part".
Result<HostImages> images_of_host(const std::string& directory, const Json& start);

// The answer to "have", before a restart: is the part that the head names here? The keeper may have to be started.
Json has_part(const Json& question);

}  // namespace ckpt::cli
