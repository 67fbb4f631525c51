// The library's end of base/protocol/control_protocol.h.
//
// Owner:     libckpt_rt. Callers: the agent.
#pragma once

#include <cstdint>

namespace ckpt {

// Connects to the asker with that cookie, does what it asks and answers. Says nothing to other users'
// sockets. False: no such asker listens.
bool serve_asker(uint64_t cookie);
// The same for all askers of this process that could not send their cookie. False: no such asker listens.
bool serve_askers_without_cookie();

}  // namespace ckpt
