// `ckpt hosts`, with the commands of jobs over hosts that are not for users, and `ckpt migrate`: for main.cc.
// Each adds its CLI::App with options, help and exit codes; when chosen, its callback leaves the exit code in
// `exit`.
//
// Owner: cli. Ordinary code, one thread. Callers: main() of ckpt.
#pragma once

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"

namespace ckpt::cli {

void add_hosts(CLI::App& app, ExitCode& exit);
void add_migrate(CLI::App& app, ExitCode& exit);

}  // namespace ckpt::cli
