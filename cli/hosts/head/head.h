// The head of a job over several hosts: it stays where the user started it, decides about checkpoints, and
// ends as the program ends.
//
// Owner: cli. Callers: in_place.cc; of block_signals() start_over_hosts.cc and look_at_hosts.cc. `ckpt`'s one
// thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// The signals that watch_job() reads are blocked from now on, SIGPIPE is ignored. Before the first host is
// called. (start_over_hosts.cc)
void block_signals();

// All processes of the job were ended, to go on from a checkpoint: elsewhere (cli/hosts/head/moving.h), or
// where they were, because they could not go back in place (cli/hosts/restart/going_back.h).
struct Moved {
  std::vector<int> parts;  // which go elsewhere
  std::string from, to;
  std::string path;                         // of the checkpoint
  int64_t stood_ns = 0;                     // since when all stand, by the clock of now_ns()
  std::function<void(const Json&)> answer;  // to the user who has asked, if he is still there
  std::string why_not_back;                 // why they did not go back in place; "": they go elsewhere
};

// How it ended. lost: hosts of the crew that are gone, where the job is to go on without them
// (HostsRun::recover).
struct Watched {
  ExitCode exit = ExitCode::kInternal;
  std::vector<int> lost = {};
  bool ran = false;          // the job was there, and its first process has ended or was lost
  bool told_to_run = false;  // by a head that does not know whether it did
  std::optional<Moved> moved = {};
  // Of a loss: the program had not ended, and no checkpoint was under way. Survivors may go back in place.
  bool in_between = false;
  bool no_room = false;  // the hosts in `lost` are there, and too small for the part that they were to get
};

// Until the program ends, whose exit code it returns. All hosts have started their part of the job.
// table: of the hosts, as a checkpoint stores it. name: of the program. directory: for checkpoints.
Watched watch_job(Crew& crew, std::string job, Json table, std::string name, std::string directory,
                  HostsRun run);

}  // namespace ckpt::cli
