// ckpt check: what this machine allows, what follows from it, and what to do about it.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/program/machine.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct Options {
  std::string directory = ".";
  bool json = false;
};

const char* level_name(Level level) {
  switch (level) {
    case Level::kGood:
      return "ok";
    case Level::kLimited:
      return "limited";
    default:
      return "missing";
  }
}

void print_text(const KernelCaps& caps, const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    fmt::print("{:<8} {:<36} {}\n", level_name(f.level), f.title, f.detail);
    if (!f.effect.empty()) fmt::print("{:<8} -> {}\n", "", f.effect);
    if (!f.remedy.empty()) fmt::print("{:<8} -> to change it: {}\n", "", f.remedy);
  }
  fmt::print("mode auto takes: {}\n", automatic_mode(caps));
}

void print_findings(const KernelCaps& caps, const std::vector<Finding>& findings, bool usable) {
  nlohmann::ordered_json json;
  json["usable"] = usable;
  json["mode"] = automatic_mode(caps);
  json["uid"] = geteuid();
  for (const Finding& f : findings) {
    json["findings"].push_back({{"id", f.id},
                                {"title", f.title},
                                {"level", level_name(f.level)},
                                {"detail", f.detail},
                                {"effect", f.effect},
                                {"remedy", f.remedy}});
  }
  print_json(json);
}

ExitCode check(const Options& o) {
  KernelCaps caps = probe_kernel_caps();
  std::vector<Finding> findings = describe_machine(caps);
  for (Finding& f : describe_directory(o.directory)) findings.push_back(std::move(f));
  bool usable = std::none_of(findings.begin(), findings.end(),
                             [](const Finding& f) { return f.level == Level::kMissing; });
  if (o.json) {
    print_findings(caps, findings, usable);
  } else {
    print_text(caps, findings);
  }
  return usable ? ExitCode::kOk : ExitCode::kUnavailable;
}

}  // namespace

void add_check(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("check", "show what this machine allows, and what to do about it");
  auto o = std::make_shared<Options>();
  command->add_option("DIR", o->directory, "where images would go (default: the current directory)");
  command->add_flag("--json", o->json, "print the findings as JSON");
  command->footer(
      "Every finding comes from trying it. It holds for this user in this place: run it as the user, and in\n"
      "the container, in which the program will run.\n"
      "Exit codes: 0 checkpoint and restart work here, 64 wrong arguments, 69 something needed is missing.");
  command->callback([o, &exit] { exit = check(*o); });
}

}  // namespace ckpt::cli
