#include "cli/ask/job_coordinator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <optional>

namespace ckpt::cli {

namespace {

// 0: there is none.
pid_t parent_of(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string key; status >> key;) {
    pid_t parent = 0;
    if (key == "PPid:" && status >> parent) return parent;
  }
  return 0;
}

std::string job_of(const Target& target, const AskLimits& limits) {
  auto answer = ask(target, ControlOperation::kStat, limits, {});
  return answer.ok() ? text_of(*answer, "job_id") : "";
}

}  // namespace

Target coordinator_for(Target target, const AskLimits& limits) {
  if (geteuid() != 0 || target.uid == 0) return target;
  std::string job;
  std::optional<Target> topmost;
  for (pid_t pid = parent_of(target.pid); pid > 1; pid = parent_of(pid)) {
    auto above = examine_target(pid);
    if (!above.ok()) break;
    if (job.empty()) job = job_of(target, limits);
    if (job.empty() || job_of(*above, limits) != job) break;
    topmost = std::move(*above);
  }
  return topmost && topmost->uid != target.uid ? std::move(*topmost) : std::move(target);
}

}  // namespace ckpt::cli
