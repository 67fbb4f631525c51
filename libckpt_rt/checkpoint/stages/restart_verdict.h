// Will a restart of the image be possible? Judged in the stop, of what is known then.
//
// Owner: one Attempt. Callers: the agent, threads standing.
#pragma once

#include "libckpt_rt/checkpoint/stages/process_capture.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"

namespace ckpt {

// False: a note of severity 2 says why not. Notes what mappings lose.
bool can_be_restarted(const ProcessCapture& capture, Workspace& space);

}  // namespace ckpt
