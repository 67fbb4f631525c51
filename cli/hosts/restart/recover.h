// A host of a job has died: the job goes on from its newest checkpoint, on a spare host or on those that are
// left.
//
// Owner: cli, the head. One thread. A part that is lost is computed from the memory of the others
// (cli/hosts/checkpoints/redundancy.h) where there is redundancy; else each host must be able to read its
// part. Callers: the restart; the head, when a host is lost.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "cli/hosts/head/head.h"
#include "cli/hosts/job/hosts_run.h"

namespace ckpt::cli {

// Where the parts of a job are.
struct Places {
  std::vector<std::string> where;   // the host of each part
  std::vector<std::string> spares;  // hosts that take the place of the next that die
};
// Another host for each part that was on one of `dead`, or of these for `lost` alone: a spare, or else the
// living host with the fewest parts. False: no host is left.
bool replace(const std::set<std::string>& dead, Places& places, const std::vector<int>* lost = nullptr);
std::set<std::string> hosts_of(const std::vector<int>& parts, const Places& places);
void count_deaths(size_t hosts);  // for mtbf_of_job()

// The checkpoint at `path` comes back: part i on places.where[i]. Until the program ends, or a host is lost
// and the others cannot go back in place. (start_over_hosts.cc)
// runs: called when all of it runs there.
Watched bring_back(const std::string& path, HostsRun run, Places& places,
                   const std::function<void()>& runs = {});

// end: why nobody watches the job any more. Until the program ends. A job that was ended to go on elsewhere
// comes back there, or else where it was. directory: of checkpoints, also those of other jobs.
ExitCode go_on(const std::string& directory, const std::string& job, HostsRun run, Places places,
               Watched end);

// Of all hosts together: as given for one, or as this head has seen it.
int64_t mtbf_of_job(const HostsRun& run, size_t hosts);

}  // namespace ckpt::cli
