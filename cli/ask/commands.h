// `ckpt now`, `ckpt stat`, `ckpt backtrace`: for main.cc. Each adds its CLI::App with options, help and exit
// codes; when chosen, its callback leaves the exit code in `exit`.
//
// Owner: cli. Ordinary code, one thread. Callers: main() of ckpt.
#pragma once

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"

namespace ckpt::cli {

void add_now(CLI::App& app, ExitCode& exit);
void add_stat(CLI::App& app, ExitCode& exit);
void add_backtrace(CLI::App& app, ExitCode& exit);

}  // namespace ckpt::cli
