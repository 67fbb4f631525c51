// Which back end an attempt has: the settings decide, and what this machine and this program allow.
//
// Owner:     libckpt_rt. Callers: the agent. Nobody else looks at the mode.
#pragma once

#include "libckpt_rt/checkpoint/attempt.h"

namespace ckpt {

// An attempt has found the back end that is set unfit for this process: choose_method() does not name it
// again.
void refuse_back_end();

// The mode that nothing in the program can spoil.
inline constexpr CheckpointMethod kUnspoilable{Mode::kFork, FaultBackEnd::kHandler};
// The one in which threads stand until the image is durable.
inline constexpr CheckpointMethod kUntilDurable{Mode::kSequential, FaultBackEnd::kHandler};

// choose_method(), unless something in the program forbids that now.
CheckpointMethod choose_method_of_attempt(const Settings& settings);

// The watch that was kept, if this mode can go on with it, else a new one. nullptr: no address space left.
Watch* take_watch(const CheckpointMethod& method);

// The stages of one attempt, with the back end of this mode.
Result<void> run_attempt(const CheckpointMethod& method, Attempt& attempt);

}  // namespace ckpt
