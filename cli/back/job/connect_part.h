// The processes of another host of the job go on elsewhere, and those of this host stand at the same instant:
// their connections to that host are made anew. docs/hosts.md, "Going elsewhere".
//
// Owner:     cli, `ckpt back-part`, which the host's agent has started. One thread.
// Callers:   `ckpt back-part`.
// Order:     connect_part() comes to the steps prepared, listening and ready with all hosts; until the head
//            has answered the last nothing of the program is changed. Then it hands each process its sockets.
// Never:     lets a process go on.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/back/job/other_hosts.h"

namespace ckpt::cli {

// plan: {"part": DIRECTORY, "cookie": 16 hexadecimal digits, ...}, as the head makes it. others: has the
// connections. kUnsupported at "prepared": only a restart of all hosts can move the job.
Result<void> connect_part(const nlohmann::json& plan, OtherHosts& others);

}  // namespace ckpt::cli
