// What a restart will not bring back of the process itself, in words for the user. Descriptors have notes of
// their own.
//
// Owner: one Attempt. Callers: the agent, or the child that writes the image, program running: nothing here
// is in the pause.
// Never: asks a program that has filtered its system calls for what it might not be allowed.
#pragma once

#include <span>

#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/image/meta.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"

namespace ckpt {

void note_what_is_lost(const ProcessFacts& facts, std::span<const StoppedThread> threads, Workspace& space);

}  // namespace ckpt
