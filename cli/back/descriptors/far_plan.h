// Connections of a job's processes to its other hosts: each is emptied, and gets again what waited in it.
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc, when the processes of all hosts stand.
#pragma once

#include <vector>

#include "cli/back/descriptors/channel_plan.h"
#include "cli/back/job/other_hosts.h"

namespace ckpt::cli {

// An error names what cannot go back; nothing is changed then.
Result<void> plan_far_connections(std::vector<PlannedMember>& members, OtherHosts& others);

}  // namespace ckpt::cli
