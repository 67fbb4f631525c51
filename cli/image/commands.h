// The commands that look at images, or change what is kept of them: for main.cc. Each adds its CLI::App with
// options, help and exit codes; when chosen, its callback leaves the exit code in `exit`.
//
// Owner: cli. Ordinary code, one thread. Callers: main() of ckpt.
#pragma once

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"

namespace ckpt::cli {

void add_ls(CLI::App& app, ExitCode& exit);
void add_show(CLI::App& app, ExitCode& exit);
void add_verify(CLI::App& app, ExitCode& exit);
void add_diff(CLI::App& app, ExitCode& exit);
void add_core(CLI::App& app, ExitCode& exit);
void add_gc(CLI::App& app, ExitCode& exit);
void add_cat(CLI::App& app, ExitCode& exit);
void add_compact(CLI::App& app, ExitCode& exit);

}  // namespace ckpt::cli
