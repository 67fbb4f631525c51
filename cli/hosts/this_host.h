// What ckpt agent looks up about the host that it runs on, and the processes that it starts and ends there.
//
// Owner: cli. Callers: agent.cc, in its one thread.
#pragma once

#include <string>
#include <vector>

#include "cli/hosts/hosts.h"

namespace ckpt::cli {

// What must be the same on all hosts for a process to come back on another one: checksums by name of file.
Json files_of_host();
// Where the own program is, and those that belong to it.
std::string own_directory();
// Leads a group of its own; has the descriptor `keep`. -1: no process.
int start_process(const std::vector<std::string>& words, int keep);
// Has the first process of this host keep the connections that no process has accepted (docs/hosts.md). hosts: its CKPT_HOSTS.
// Where it is not there, or does not answer, they stay where they are: the checkpoint will say so.
void keep_unaccepted(const std::string& hosts);
// Ends all processes below this one. patient: asks them to, for two seconds before that.
void end_descendants(bool patient);

}  // namespace ckpt::cli
