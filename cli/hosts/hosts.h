// A job over several hosts: `ckpt run --hosts`, `ckpt hosts`, `ckpt restart-hosts` (the head), `ckpt agent`
// (one a host). docs/hosts.md has who says what to whom.
//
// Owner: cli. Ordinary code; the agent has one thread more while its host's processes take a checkpoint.
// Callers: `ckpt run`, `ckpt hosts`, `ckpt-restart`, the agent.
#pragma once

#include <string>

#include "base/exit_codes.h"
#include "cli/hosts/job/hosts_run.h"

namespace ckpt::cli {

// Until the program has ended. Its exit code, or the error's.
ExitCode run_over_hosts(const HostsRun& run);
// A checkpoint of such a run, on these hosts: on fewer than it has parts, some get several; the same host may
// be named twice.
ExitCode restart_over_hosts(const std::string& checkpoint, HostsRun run);
// Whether such a checkpoint could come back on these hosts now: nothing is started but agents and checks.
ExitCode check_over_hosts(const std::string& checkpoint, const HostsRun& run);
// Prints which hosts answer, and whether their versions fit together.
ExitCode look_at_hosts(const HostsRun& run, bool json);
// Reads what it is to do from standard input.
ExitCode run_agent();

}  // namespace ckpt::cli
