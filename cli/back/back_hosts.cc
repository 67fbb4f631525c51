#include "cli/back/back_hosts.h"

#include <cstdlib>
#include <filesystem>

#include "cli/ask/asker.h"
#include "cli/hosts/job/ask_job.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/json_lines.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

void print_hosts_cost(const Json& a) {
  const auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  fmt::print("the job is back at checkpoint {}\n", printable(a.value("checkpoint", "")));
  line("hosts", fmt::format("{}", a.value("hosts", 0)));
  if (a.contains("members")) {
    line("processes", fmt::format("{}", a.value("members", 0)));
    if (a.value("ended", 0) != 0) line("born since, and ended", fmt::format("{}", a.value("ended", 0)));
    line("threads stood", fmt::format("{} ({})", human_duration(a.value("pause_ns", int64_t{0})),
                                      plural(a.value("threads", uint64_t{0}), "thread", "threads")));
    line("memory put back", human_bytes(a.value("bytes", uint64_t{0})));
  }
  for (const Json& note : a.value("notes", Json::array())) line("note", note.get<std::string>());
}

}  // namespace

Result<bool> back_over_hosts(const std::string& pid_text, const std::string& checkpoint, bool json,
                             bool has_limits) {
  auto pid = parse_pid(pid_text);
  if (!pid.ok()) return pid.error();
  // The head looks for the file, and may run in another directory.
  std::string path = checkpoint;
  if (!path.empty()) path = std::filesystem::absolute(path).lexically_normal().string();
  // `ckpt back` itself would be ended half way, as a process that was born since the checkpoint.
  const char* own = getenv("CKPT_HOSTS");
  if (own != nullptr && getenv("CKPT_JOB") != nullptr && own == hosts_of_process(*pid))
    return failure(ExitCode::kUnsupported, "ckpt back", "was started by the job that is to go back",
                   "run it from outside of the job");
  if (has_limits && !hosts_of_process(*pid).empty())
    return failure(ExitCode::kUsage, "--anyway, --timeout", "are of processes of one host",
                   "leave them out for a job over several hosts");
  auto answer =
      answer_of_job_over_hosts(*pid, pid_text, {{"leave_out", ""}, {"back", {{"checkpoint", path}}}});
  if (!answer.ok()) return answer.error();
  if (!answer->has_value()) return false;
  if (json)
    print_json(**answer);
  else
    print_hosts_cost(**answer);
  return true;
}

}  // namespace ckpt::cli
