// `ckpt hosts`, and the commands of jobs over hosts that are not for users.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"

namespace ckpt::cli {

void add_hosts(CLI::App& app, ExitCode& exit);

}  // namespace ckpt::cli
