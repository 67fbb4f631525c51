// The library's end of base/protocol/control_protocol.h.
//
// Owner:     libckpt_rt. Callers: the agent.
#pragma once

#include <cstdint>

namespace ckpt {

// Connects to the asker behind the cookie, does what it asks and answers. Says nothing to strangers. False:
// there is none.
bool serve_asker(uint64_t cookie);
// All who listen for this process without having been able to say their cookie.
bool serve_askers_without_cookie();

}  // namespace ckpt
