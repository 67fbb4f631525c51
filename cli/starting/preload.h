// Where libckpt_rt.so is, and how to say so in LD_PRELOAD.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt run`, the agent.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

// The library that belongs to this very command: beside it, as built or as installed.
Result<std::string> find_library(const std::string& name);

// A path of the library that LD_PRELOAD can hold. The dynamic linker separates at spaces and colons and knows
// no quoting. A path with either is reached through a symbolic link in a private directory (0700, in
// $XDG_RUNTIME_DIR or /tmp). There is one link for each library path, made once and kept.
Result<std::string> preloadable_path(const std::string& library);

}  // namespace ckpt::cli
