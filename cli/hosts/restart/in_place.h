// Hosts of a job have died: the processes of the others go back in place, and those of the dead are restarted
// on other hosts. docs/diskless_in_place.md.
//
// Owner: cli, the head. One thread. Callers: start_over_hosts.cc.
#pragma once

#include <string>

#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/restart/recover.h"

namespace ckpt::cli {

// As watch_job(). watch_in_place() returns for a loss only if the loss takes a restart of the whole job. All
// that is left of the job then still runs.
Watched watch_in_place(Crew& crew, const std::string& job, Json table, const std::string& name,
                       const std::string& directory, const HostsRun& run, Places& places);

}  // namespace ckpt::cli
