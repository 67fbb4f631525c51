// Connections to a host of the job that has died: made anew, to the host that has its processes now, by the code of a
// restart. What waited in them at the checkpoint waits in them again.
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc, when the processes of this host stand.
#pragma once

#include <vector>

#include "cli/back/descriptors/still_open.h"
#include "cli/back/job/other_hosts.h"
#include "image/read/image_meta.h"

namespace ckpt::cli {

// A process of the job.
struct StandingMember {
  const ImageMeta *then, *now;
  int pidfd;
};

// Errors (kUnsupported): the process has something else to the host that is lost, a connected UDP socket or a connection that
// was just being made.
Result<void> check_other_sockets(const StandingMember& member, const OtherHosts& others);

// For each member what takes the place of its connections to the host that is lost. Returns when both ends of each are
// there. Nothing of the program is changed.
Result<std::vector<ReplacedFiles>> connect_again(const std::vector<StandingMember>& members,
                                                 OtherHosts& others);

}  // namespace ckpt::cli
