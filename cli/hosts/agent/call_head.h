// How the agent of a host comes to the head of its job.
//
// Owner: cli. Callers: agent.cc, in its one thread, before anything else.
#pragma once

#include <string>

#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

struct CalledHead {
  cluster::SealedLink link;  // closed: the head was gone again
  std::string own_address;   // of this host, as the head sees it
};
// task: what `ckpt run --hosts` has written to the agent's standard input. The head is told what this host
// is.
Result<CalledHead> call_head(const Json& task);

// A port of this address below those that the kernel chooses from: so a restart knows the listening end as a
// server.
Result<ScopedFd> listen_low(const std::string& address, int* port);

}  // namespace ckpt::cli
