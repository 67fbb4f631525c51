// The subcommands of `ckpt`, each in a file of its own. Each adds its CLI::App with options, help and
// exit codes; when chosen, its callback leaves the exit code in `exit`.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/exit_codes.h"

namespace ckpt::cli {

// `program` is what follows the options of `ckpt run`, taken off before the options are parsed: the
// program's own options are not ours.
CLI::App* add_run(CLI::App& app, const std::vector<std::string>& program, ExitCode& exit);
void add_now(CLI::App& app, ExitCode& exit);
void add_back(CLI::App& app, ExitCode& exit);
void add_plan(CLI::App& app, ExitCode& exit);
void add_keeper(CLI::App& app, ExitCode& exit);
void add_stat(CLI::App& app, ExitCode& exit);
void add_ls(CLI::App& app, ExitCode& exit);
void add_show(CLI::App& app, ExitCode& exit);
void add_verify(CLI::App& app, ExitCode& exit);
void add_diff(CLI::App& app, ExitCode& exit);
void add_core(CLI::App& app, ExitCode& exit);
void add_gather(CLI::App& app, ExitCode& exit);
void add_migrate(CLI::App& app, ExitCode& exit);
void add_gc(CLI::App& app, ExitCode& exit);
void add_cat(CLI::App& app, ExitCode& exit);
void add_compact(CLI::App& app, ExitCode& exit);
// program: what follows "--".
void add_check(CLI::App& app, const std::vector<std::string>& program, ExitCode& exit);
void add_backtrace(CLI::App& app, ExitCode& exit);

}  // namespace ckpt::cli
