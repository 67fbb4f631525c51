// A host of a job has died: the job goes on from its newest checkpoint, on a spare host or on those that are left.
//
// Owner: cli, the head. One thread. What is lost is computed from the memory of the others (cli/keeper/protect.h) where there
// is redundancy; else each host must be able to read its part.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/hosts/head.h"

namespace ckpt::cli {

// The checkpoint at `path` comes back: part i on hosts[i]. Until the program ends, or a host is lost. (start_over_hosts.cc)
// runs: called when all of it runs there.
Watched bring_back(const std::string& path, HostsRun run, const std::vector<std::string>& hosts,
                   const std::function<void()>& runs = {});

// where: of each part the host that it was on. end: why nobody watches the job any more. Until the program ends. A job that was ended to
// go on elsewhere comes back there, or else where it was.
ExitCode go_on(const std::string& directory, HostsRun run, std::vector<std::string> where, Watched end);

// Of all hosts together: as given for one, or as this head has seen it.
int64_t mtbf_of_job(const HostsRun& run, size_t hosts);

}  // namespace ckpt::cli
