// Where the restorer enters the library inside restored memory (base/protocol/restart_protocol.h).
//
// Owner:     libckpt_rt (entry/restart_entry.cc); declared here because the image names its address.
// Callers:   the restorer of ckpt-restart, on the leader, on a stack in the restorer's range, all signals
//            blocked, no TLS.
#pragma once

#include "base/protocol/restart_protocol.h"

extern "C" void ckpt_restart_entry(const ckpt::RestartArgs* args);
