// New sockets for this process, whose threads stand, in place of its connections to a host of the job that
// was left (base/protocol/reconnect_protocol.h).
//
// Owner:     job. Callers: the agent of each member, between its image and the end of the stop.
// Never:     returns true when only some of them are in place.
#pragma once

#include <cstdint>

namespace ckpt::job {

// cookie: by which `ckpt back-part` is found. Also reads the table of hosts anew, which the host's agent has
// written.
bool reconnect(uint64_t cookie);

}  // namespace ckpt::job
