// The sequential engine: the oracle of the optimistic one, and what it has to beat.
//
// Owner: ckpt_tw_run(). Callers: one thread. Header for the run only.
//
// An event's block is given back before its handler runs. So the first message that the handler sends takes
// the same block, still in the cache (last in, first out). The message being read is therefore copied first.
#pragma once

#include "timewarp/engine/setup.h"

namespace ckpt::timewarp {

void run_sequential(Setup& setup, ckpt_tw_result& result);

}  // namespace ckpt::timewarp
