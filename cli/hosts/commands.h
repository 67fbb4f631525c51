// `ckpt hosts`, and two commands that are not for users: `ckpt agent`, `ckpt restart-hosts`.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"

namespace ckpt::cli {

void add_hosts(CLI::App& app, ExitCode& exit);

}  // namespace ckpt::cli
