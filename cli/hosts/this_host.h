// What ckpt agent looks up about the host that it runs on.
//
// Owner: cli. Callers: agent.cc, in its one thread.
#pragma once

#include <vector>

#include "cli/hosts/hosts.h"

namespace ckpt::cli {

// What must be the same on all hosts for a process to come back on another one: checksums by name of file.
Json files_of_host();
// All processes below that one.
std::vector<int> descendants(int of);

}  // namespace ckpt::cli
