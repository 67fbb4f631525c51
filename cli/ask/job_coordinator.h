// Whom root asks for the checkpoint of a job when the process that was named has given up root's rights: such
// a process may look neither at the others nor into their directory. The topmost of its ancestors in the same
// job may.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt now`.
#pragma once

#include "cli/ask/asker.h"

namespace ckpt::cli {

// The target itself where it may be the coordinator, or where it has no such ancestor.
Target coordinator_for(Target target, const AskLimits& limits);

}  // namespace ckpt::cli
