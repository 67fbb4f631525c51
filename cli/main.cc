// ckpt: run programs under the checkpointer, ask them for checkpoints, look at images and machines.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/files/standard_descriptors.h"
#include "cli/ask/commands.h"
#include "cli/back/commands.h"
#include "cli/gather/commands.h"
#include "cli/hosts/commands.h"
#include "cli/image/commands.h"
#include "cli/keeper/commands.h"
#include "cli/plan/commands.h"
#include "cli/program/commands.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done, 64 wrong arguments, 65 image damaged, 66 not found, 67 no such process or not\n"
    "preloaded, 69 forbidden by the machine, 70 checkpoint given up, 71 system error, 73 cannot create,\n"
    "74 write error, 75 timeout, 76 durable but no restart of it can be, 77 not permitted, 78 cannot be\n"
    "checkpointed. See docs/exit_codes.md.";

struct Command {
  std::string_view name;  // empty: it is set up only together with all others
  void (*add)(CLI::App& app, ExitCode& exit);
};
constexpr Command kCommands[] = {
    {"now", add_now},
    {"back", add_back},
    {"", add_plan},
    {"", add_hosts},
    {"", add_gather},
    {"", add_migrate},
    {"", add_keeper},
    {"stat", add_stat},
    {"ls", add_ls},
    {"show", add_show},
    {"verify", add_verify},
    {"diff", add_diff},
    {"core", add_core},
    {"gc", add_gc},
    {"compact", add_compact},
    {"cat", add_cat},
    {"backtrace", add_backtrace},
};

// A command that is asked for by its name is set up alone: to set up all takes 0.4 ms of a processor, an
// eighth of all that `ckpt now` takes. nullptr: all are wanted, for the help or for a word that is none.
const Command* find_alone(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [name](const Command& command) { return !name.empty() && command.name == name; });
  return found == std::end(kCommands) ? nullptr : found;
}

// Where the program to run begins in argv: after "--", or at the first word that is neither an option
// of `ckpt run` nor the value of one. argc if there is none.
int program_begin(const CLI::App& run, int argc, char** argv, int first) {
  for (int i = first; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) return i;
    if (argv[i][0] != '-') return i;
    const CLI::Option* option = run.get_option_no_throw(argv[i]);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;
  }
  return argc;
}

// Images in a keeper's memory have no path; from here on they have. `words` keeps the new ones.
Result<void> reach_images(int argc, char** argv, std::vector<std::string>& words) {
  words.reserve(static_cast<size_t>(argc));
  for (int i = 2; i < argc; ++i) {
    auto path = reach_keeper_images(argv[i], true);
    if (!path.ok()) return path.error();
    if (*path == argv[i]) continue;
    words.push_back(std::move(*path));
    argv[i] = words.back().data();
  }
  return {};
}

int main(int argc, char** argv) {
  CLI::App app{"Checkpoint unmodified multi-threaded programs while they run, and bring them back.", "ckpt"};
  app.set_version_flag("--version", "ckpt " CKPT_VERSION);
  app.footer(kFooter);
  app.require_subcommand(1);
  ExitCode exit = ExitCode::kOk;
  std::vector<std::string> program;
  const Command* only = argc > 1 ? find_alone(argv[1]) : nullptr;
  CLI::App* run = only == nullptr ? add_run(app, program, exit) : nullptr;
  for (const Command& command : kCommands) {
    if (only == nullptr || only == &command) command.add(app, exit);
  }
  if (only == nullptr) add_check(app, program, exit);
  for (CLI::App* command : app.get_subcommands({})) {
    command->set_version_flag("--version", "ckpt " CKPT_VERSION);
  }

  int end = argc;
  if (argc > 1 && std::strcmp(argv[1], "run") == 0) {
    end = program_begin(*run, argc, argv, 2);
    int begin = end < argc && std::strcmp(argv[end], "--") == 0 ? end + 1 : end;
    program.assign(argv + begin, argv + argc);
  }
  if (argc > 1 && std::strcmp(argv[1], "check") == 0) {
    end = static_cast<int>(std::find(argv + 2, argv + argc, std::string_view("--")) - argv);
    if (end < argc) program.assign(argv + end + 1, argv + argc);
  }
  std::vector<std::string> words;
  if (argc > 1 && std::strcmp(argv[1], "run") != 0) {
    if (auto reached = reach_images(end, argv, words); !reached.ok())
      return static_cast<int>(report(reached.error()));
  }
  try {
    app.parse(end, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();  // said already
  } catch (const CLI::ParseError& e) {
    const auto chosen = app.get_subcommands();
    const CLI::App& command = chosen.empty() ? app : *chosen[0];
    const auto not_known =
        command.get_require_subcommand_min() > 0 ? command.remaining() : std::vector<std::string>();
    fmt::print(stderr, "ckpt: {} (see ckpt {}{}--help{})\n",
               not_known.empty() ? e.what() : fmt::format("{}: no such command or option", not_known[0]),
               chosen.empty() ? "" : chosen[0]->get_name(), chosen.empty() ? "" : " ",
               !not_known.empty() && not_known[0] == "restart" ? ", and ckpt-restart --help" : "");
    return static_cast<int>(ExitCode::kUsage);
  }
  return static_cast<int>(exit);
}

}  // namespace

}  // namespace ckpt::cli

int main(int argc, char** argv) {
  ckpt::take_standard_descriptors();
  return ckpt::cli::main(argc, argv);
}
