// ckpt stat: what a running program's checkpointer is set to and has done so far.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/ask/answer_json.h"
#include "cli/ask/asker.h"
#include "cli/commands.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct Options {
  std::string pid;
  bool json = false;
};

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
  line("checkpoint signal", text_of(a, "signal"));
  line("segment, pool",
       fmt::format("{}, {}", human_bytes(number_of(a, "segment")), human_bytes(number_of(a, "pool"))));
  if (std::string level = text_of(a, "compress_level"); !level.empty()) {
    line("compression", fmt::format("{}, level {}", text_of(a, "compress"), level));
  } else {
    line("compression", text_of(a, "compress"));
  }
  if (std::string to = text_of(a, "to"); !to.empty()) line("images go to", to);
  if (std::string key = text_of(a, "key_file"); !key.empty()) line("encrypted with", key);
  if (std::string most = text_of(a, "increments"); !most.empty()) {
    line("increments",
         most == "0" ? "none: each image is full" : fmt::format("at most {} to each full image", most));
  }
  if (std::string keep = text_of(a, "keep"); !keep.empty()) {
    line("images that stay", keep == "0" ? "all" : fmt::format("{}, and what they are increments to", keep));
  }
  line("interval", number_of(a, "every_ns") == 0 ? "none" : time("every_ns"));
  line("checkpoints",
       fmt::format("{} taken, {} given up", text_of(a, "checkpoints"), text_of(a, "failures")));
  line("threads stood",
       fmt::format("{} longest, {} in all", time("longest_pause_ns"), time("total_pause_ns")));
  if (std::string image = text_of(a, "last_image"); !image.empty()) line("last image", image);
  if (std::string error = text_of(a, "last_error"); !error.empty()) line("last error", error);
}

Result<void> stat(const Options& o) {
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  auto target = examine_target(*pid);
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
  auto o = std::make_shared<Options>();
  command->add_option("PID", o->pid, "process id of the program")->required();
  command->add_flag("--json", o->json, "print them as JSON: times in ns, sizes in bytes");
  command->footer(
      "Exit codes: 0 done, 64 wrong arguments, 67 no such process or not preloaded, 69 stopped or not "
      "ready,\n"
      "75 no answer in time, 77 not yours.");
  command->callback([o, &exit] {
    auto done = stat(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
