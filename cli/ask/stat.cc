// ckpt stat: what a running program's checkpointer is set to and has done so far.
#include <memory>
#include <nlohmann/json.hpp>

#include "base/settings/settings_table.h"
#include "cli/ask/answer_json.h"
#include "cli/ask/asker.h"
#include "cli/ask/commands.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct StatOptions {
  std::string pid;
  bool json = false;
};

// Each setting: as it is set, whether that is the default, and what is in force if that is another.
void print_settings(const Answer& a) {
  fmt::print("settings\n");
  for (const auto& [variable, value] : settings_of(a)) {
    const Setting* known = find_setting(variable);
    SettingText standard;
    if (known != nullptr) known->print(Settings{}, standard);
    std::string text = value.set;
    if (known != nullptr && text == standard.text)
      text = fmt::format("{} (default)", known->when_empty != nullptr ? known->when_empty : text);
    if (!value.in_force.empty()) text += fmt::format("; in force: {}", value.in_force);
    fmt::print("  {:<24}{}\n", printable(variable), printable(text));
  }
}

void print_figures(const Target& t, const Answer& a) {
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  auto time = [&](const char* key) { return human_duration(static_cast<int64_t>(number_of(a, key))); };
  fmt::print("{} (pid {}), libckpt_rt {}\n", printable(t.name), t.pid, printable(text_of(a, "version")));
  if (t.inner_pid != t.pid) line("pid in its namespace", fmt::format("{}", t.inner_pid));
  line("image directory", text_of(a, "directory"));
  if (const std::string root = text_of(a, "job_root"); !root.empty() && root != text_of(a, "pid"))
    line("job", fmt::format("of process {}; checkpoints in {}", root, text_of(a, "job_directory")));
  std::string reason = text_of(a, "mode_reason");
  line("mode", reason.empty() ? text_of(a, "mode") : fmt::format("{} ({})", text_of(a, "mode"), reason));
  if (std::string faults = text_of(a, "faults"); !faults.empty()) line("faults handled by", faults);
  if (std::string why = text_of(a, "faults_reason"); !why.empty()) line("", why);
  line("checkpoints",
       fmt::format("{} taken, {} given up", text_of(a, "checkpoints"), text_of(a, "failures")));
  if (number_of(a, "every_mtbf_ns") != 0)
    line("checkpoints every", fmt::format("{}: threads stand {}, a checkpoint counts after {}, and {} is the "
                                          "time between failures",
                                          time("every_ns"), time("every_overhead_ns"),
                                          time("every_latency_ns"), time("every_mtbf_ns")));
  line("threads stood",
       fmt::format("{} longest, {} in all", time("longest_pause_ns"), time("total_pause_ns")));
  if (number_of(a, "processor_ns") != 0) line("processor time of ours", time("processor_ns"));
  if (std::string image = text_of(a, "last_image"); !image.empty()) line("last image", image);
  if (std::string error = text_of(a, "last_error"); !error.empty()) line("last error", error);
  print_settings(a);
}

Result<void> stat(const StatOptions& o) {
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  auto target = await_target(*pid);
  if (!target.ok()) return target.error();
  auto answer = ask(*target, ControlOperation::kStat, {}, nullptr);
  if (!answer.ok()) return answer.error();
  if (o.json) {
    print_json(answer_json(*target, *answer));
  } else {
    print_figures(*target, *answer);
  }
  return {};
}

}  // namespace

void add_stat(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("stat", "show a running program's settings and figures");
  auto o = std::make_shared<StatOptions>();
  command->add_option("PID", o->pid, "process id of the program")->required();
  command->add_flag("--json", o->json, "print them as JSON: times in ns, sizes in bytes");
  command->footer(
      "Exit codes: 0 done, 64 wrong arguments, 67 no such process or not preloaded, 69 not ready, or "
      "stopped and not to be traced,\n"
      "75 no answer in time, 77 not yours.");
  command->callback([o, &exit] {
    auto done = stat(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
