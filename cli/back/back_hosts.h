// ckpt back of a job over several hosts: its head is asked.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt back`.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

// False: the process belongs to no such job, and nothing was done. checkpoint: a .hosts file or its
// directory; "": the newest. Prints what it cost.
Result<bool> back_over_hosts(const std::string& pid, const std::string& checkpoint, bool json,
                             bool has_limits);

}  // namespace ckpt::cli
