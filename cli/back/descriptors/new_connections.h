// Connections to a host of the job that has died: made anew, to the host that has its processes now, by the
// code of a restart. What waited in them at the checkpoint waits in them again.
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc, when the processes of this host stand.
#pragma once

#include <vector>

#include "cli/back/descriptors/image_socket.h"
#include "cli/back/descriptors/still_open.h"
#include "cli/back/descriptors/strangers.h"
#include "cli/back/job/other_hosts.h"
#include "image/read/image_meta.h"

namespace ckpt::cli {

// A process of the job.
struct StandingMember {
  const ImageMeta *then, *now;
  int pidfd;
};

// Its other end had an address of the host that is lost, which means another host now.
bool leads_elsewhere_now(const ImageSocket& socket);

// Errors (kUnsupported): the process has something to the host that is lost which is neither an established
// connection nor a datagram socket (datagram_peers.h): a connection that was just being made.
Result<void> check_other_sockets(const StandingMember& member, const OtherHosts& others);

// For each member what takes the place of its connections to the host that is lost. Returns when both ends of
// each are there. Nothing of the program is changed, but for strangers, who have called it meanwhile.
Result<std::vector<ReplacedFiles>> connect_again(const std::vector<StandingMember>& members,
                                                 OtherHosts& others, Strangers& strangers);

}  // namespace ckpt::cli
