// Will a restart of the image be possible? Notes that forbid it (kNoRestart) say why not.
//
// Owner: one Attempt. Callers: the agent; mode fork: also the child that writes the image.
#pragma once

#include <string_view>

#include "libckpt_rt/checkpoint/stages/process_capture.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"

namespace ckpt {

// Notes what a restart loses of mappings and rings, as known in the stop.
void note_lost_mappings(const ProcessCapture& capture, Workspace& space);
// The verdict, when the image has all its notes: the first that forbids it. Empty: a restart is possible.
std::string_view why_no_restart(const ProcessCapture& capture, const Workspace& space);

}  // namespace ckpt
