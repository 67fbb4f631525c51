#include "restart/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "base/exit_codes.h"

namespace ckpt {

RestartOptions parse_options(int argc, char** argv) {
  RestartOptions options;
  CLI::App app{"Bring a checkpointed program back: memory, threads with their ids, descriptors, timers."};
  app.set_version_flag("--version", "ckpt-restart " CKPT_VERSION);
  app.add_option(
         "IMAGE", options.image,
         "an image, a directory (its newest complete image), DIR@SEQ, DIR@-N (the Nth before the newest) or "
         "DIR@2026-11-21T10:00 (the newest by then), or a job's checkpoint (DIR.job); - for standard input, "
         "which "
         "is /dev/null for the program then")
      ->required();
  app.add_flag("--check,--dry-run", options.check, "check everything a restart needs, start nothing");
  app.add_flag("--detach", options.detach, "return as soon as the program runs, print its pid");
  std::string namespaces = "auto";
  app.add_option("--namespaces", namespaces,
                 "auto: a pid namespace of its own only where the old ids cannot be had; never; always")
      ->type_name("WHEN")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "never", "always"}));
  app.add_option(
      "--hosts", options.hosts,
      "bring a job over several hosts (DIR, or DIR/NAME.hosts) back on these: h1,h2,h3 (default: the nodes "
      "that Slurm has given)");
  app.add_option("--launch", options.launch, "how agents are started on them (see ckpt run --help)");
  app.add_flag("--recover", options.recover,
               "with --hosts: when one of them dies the job goes on from its newest checkpoint");
  app.add_option("--spare", options.spares, "hosts that take the place of those that die: h4,h5");
  app.add_option("--hosts-fd", options.hosts_fd)->group("");  // for the agent of a host
  bool eager = false, lazy = false;
  auto* eager_flag = app.add_flag("--eager", eager, "check and load all memory before the program runs");
  auto* lazy_flag =
      app.add_flag("--lazy", lazy,
                   "let it run at once and load its memory meanwhile (default: for large images, as root)");
  eager_flag->excludes(lazy_flag);
  app.add_flag("--trust", options.trust, "restart an image that somebody else owns or may have written");
  app.add_option("--key-file", options.key_file, "the key of an encrypted image (default: CKPT_KEY_FILE)")
      ->option_text("FILE");
  app.add_flag("--json", options.json,
               "say what the restart cost as one JSON object (stderr; with --check stdout)");
  app.add_flag("-q,--quiet", options.quiet, "no notes, only errors");
  app.add_flag("-v,--verbose", options.verbose, "say what the restart cost, and its stages");
  app.footer(
      "Once the program runs, ckpt-restart is its parent: it forwards signals and ends as the program ends\n"
      "(same exit code, or killed by the same signal). Before that, exit codes:\n"
      "  64 wrong arguments             65 image damaged or truncated     66 no such image\n"
      "  68 other version, CPU, kernel  69 ids in use, no namespaces      70 a bug in ckpt-restart\n"
      "  71 a system call failed        72 a file is missing or changed   73 no file for a stream in TMPDIR\n"
      "  74 read or write error         76 the image says that it cannot be restarted\n"
      "  77 not allowed, not yours\n"
      "Nothing is changed before the image's description and every file the program used have been checked.\n"
      "Every byte of memory is checked before the program gets it: with --eager before it runs, else when "
      "it\n"
      "needs it; a damaged one kills the program (65).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) std::exit(app.exit(e));  // what was asked for: help, version
    std::fprintf(stderr, "ckpt-restart: %s (see ckpt-restart --help)\n", e.what());
    std::exit(static_cast<int>(ExitCode::kUsage));
  }
  if (namespaces == "never") options.namespaces = NamespacePolicy::kNever;
  if (namespaces == "always") options.namespaces = NamespacePolicy::kAlways;
  if (eager) options.loading = Loading::kEager;
  if (lazy) options.loading = Loading::kLazy;
  return options;
}

}  // namespace ckpt
