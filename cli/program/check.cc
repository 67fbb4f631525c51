// ckpt check: what this machine allows, what follows from it, and what to do about it; and what of a program
// can be saved.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/settings/settings.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/job/where_it_starts.h"
#include "cli/program/commands.h"
#include "cli/program/machine.h"
#include "cli/program/trial.h"
#include "cli/program/trial_over_hosts.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct CheckOptions {
  std::string directory, after, when, hosts, launch = kDefaultLaunch;
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

void print_lines(const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    fmt::print("{:<8} {:<36} {}\n", level_name(f.level), f.title, printable(f.detail));
    if (!f.effect.empty()) fmt::print("{:<8} -> {}\n", "", f.effect);
    if (!f.remedy.empty()) fmt::print("{:<8} -> to change it: {}\n", "", f.remedy);
  }
}

void print_findings(nlohmann::ordered_json json, const std::vector<Finding>& findings) {
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

// A refusal by `ckpt run` is a finding.
Trial try_where_it_starts(CheckOptions o, const std::vector<std::string>& program,
                          const TrialMoment& moment) {
  std::vector<std::string> words = program;
  if (auto settled = settle_hosts(o.hosts, o.launch, words); !settled.ok()) {
    Trial refused;
    refused.findings.push_back({"refused", "refused by ckpt run", Level::kMissing,
                                std::string(settled.error().message()), "it is not started", ""});
    refused.exit = settled.error().code;
    return refused;
  }
  return o.hosts.empty() ? try_program(program, moment) : try_over_hosts(o.hosts, o.launch, program, moment);
}

ExitCode check_trial(const CheckOptions& o, const std::vector<std::string>& program) {
  if (!o.directory.empty() || program.empty())
    return report(
        failure(ExitCode::kUsage, "check", program.empty() ? "no program given" : "a directory and a program",
                "ckpt check [DIR], or ckpt check [--after TIME] [--when FILE] -- PROGRAM [arguments]"));
  const std::string by_default = o.when.empty() ? "2s" : "0s";
  auto after = parse_duration("--after", (o.after.empty() ? by_default : o.after).c_str());
  if (!after.ok()) return report(after.error());
  if (!o.when.empty() && access(o.when.c_str(), F_OK) == 0)
    return report(failure(ExitCode::kUsage, o.when, "is there before the program runs",
                          "remove it, or name one that the program makes"));
  const Trial trial = try_where_it_starts(o, program, {o.when, *after});
  if (o.json) {
    nlohmann::ordered_json json;
    json["program"] = program;
    json["restartable"] = trial.exit == ExitCode::kOk;
    json["exit_code"] = static_cast<int>(trial.exit);
    print_findings(std::move(json), trial.findings);
  } else {
    print_lines(trial.findings);
  }
  return trial.exit;
}

ExitCode check(const CheckOptions& o) {
  KernelCaps caps = probe_kernel_caps();
  std::vector<Finding> findings = describe_machine(caps);
  for (Finding& f : describe_directory(o.directory.empty() ? "." : o.directory))
    findings.push_back(std::move(f));
  bool usable = std::none_of(findings.begin(), findings.end(),
                             [](const Finding& f) { return f.level == Level::kMissing; });
  if (o.json) {
    nlohmann::ordered_json json;
    json["usable"] = usable;
    json["mode"] = automatic_mode(caps);
    json["uid"] = geteuid();
    print_findings(std::move(json), findings);
  } else {
    print_lines(findings);
    fmt::print("mode auto takes: {}\n", automatic_mode(caps));
  }
  return usable ? ExitCode::kOk : ExitCode::kUnavailable;
}

}  // namespace

void add_check(CLI::App& app, const std::vector<std::string>& program, ExitCode& exit) {
  CLI::App* command = app.add_subcommand(
      "check", "show what this machine allows, and what to do about it; or what of a program can be saved");
  auto o = std::make_shared<CheckOptions>();
  command->add_option("DIR", o->directory, "where images would go (default: the current directory)");
  command->add_flag("--json", o->json, "print the findings as JSON");
  command->add_option(
      "--after", o->after,
      "with a program: how long it runs before the checkpoint is tried (default: 2s; with --when: 0s)");
  command->add_option(
      "--when", o->when,
      "with a program: the checkpoint is tried when this file exists, which the program makes "
      "when it is at work");
  command->add_option("--hosts", o->hosts, "with a program: on which hosts, as of ckpt run");
  command->add_option("--launch", o->launch, "with --hosts: how agents are started on them");
  command->footer(
      "With -- PROGRAM [ARGUMENTS...] the program is looked at, run, checkpointed as a trial, and killed "
      "with all\n"
      "that it has started; the image is checked and thrown away. It does what it does: name a harmless "
      "run.\n"
      "Every finding comes from trying it. It holds for this user in this place: run it as the user, and in\n"
      "the container, in which the program will run.\n"
      "Exit codes: 0 checkpoint and restart work here, 64 wrong arguments, 69 something needed is missing.\n"
      "srun, and mpirun in an allocation of several nodes, are tried on all of them, as ckpt run starts "
      "them.\n"
      "With a program: 0 it can be saved and restarted here, 75 it ended before the trial, 76 saved but not\n"
      "restartable, 78 cannot be saved; or the code of ckpt run and ckpt now.");
  command->callback([o, command, &program, &exit] {
    exit = !program.empty() ||
                   command->count("--after") + command->count("--when") + command->count("--hosts") != 0
               ? check_trial(*o, program)
               : check(*o);
  });
}

}  // namespace ckpt::cli
