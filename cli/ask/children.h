// Which processes are below one.
//
// Owner: cli. Callers: those that ask what a command of ours has started.
#pragma once

#include <sys/types.h>

#include <vector>

namespace ckpt::cli {

// Children of all its threads; none: it has none, or is gone.
std::vector<pid_t> children_of(pid_t pid);

}  // namespace ckpt::cli
