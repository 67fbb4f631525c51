// `ckpt run`, `ckpt check`: for main.cc. Each adds its CLI::App with options, help and exit codes; when
// chosen, its callback leaves the exit code in `exit`.
//
// Owner: cli. Ordinary code, one thread. Callers: main() of ckpt.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/exit_codes.h"

namespace ckpt::cli {

// `program` is what follows the options of `ckpt run`, taken off before the options are parsed: the
// program's own options are not ours.
CLI::App* add_run(CLI::App& app, const std::vector<std::string>& program, ExitCode& exit);
// program: what follows "--".
void add_check(CLI::App& app, const std::vector<std::string>& program, ExitCode& exit);

}  // namespace ckpt::cli
