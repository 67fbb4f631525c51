// The path of a directory that has more bytes than the kernel tells (4,095): found from below, a name at a
// time.
//
// Owner:     libckpt_rt. Callers: the agent.
// Source:    readlink(2) of /proc/PID/cwd: ENAMETOOLONG.
#pragma once

#include <string_view>

#include "base/memory/arena.h"
#include "base/result.h"

namespace ckpt {

// link: of /proc, to a directory. A directory that is removed: a path that ends as the kernel's does, with "
// (deleted)".
Result<std::string_view> long_path_of(Arena& arena, const char* link);

}  // namespace ckpt
