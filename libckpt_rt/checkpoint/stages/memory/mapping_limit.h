// Says so when the number of the program's mappings leaves no room for ours.
//
// Owner:     take_checkpoint(). Callers: the agent, when an attempt has failed and threads run.
// Never:     allocates: it reads files of /proc through a buffer on its stack.
// Source:    vm.max_map_count, proc(5): mmap(2) fails with ENOMEM there, as it does for other reasons.
#pragma once

#include "base/result.h"

namespace ckpt {

// The same error; or another, if this one is ENOMEM and the program has nearly all mappings that it may have.
Error blame_mapping_limit(const Error& error);

}  // namespace ckpt
