// ckpt back-part: of a job over several hosts, on each of them; see job_back.h and, where another host's
// processes go on elsewhere, connect_part.h.
#include <signal.h>
#include <unistd.h>

#include "base/checks/named_points.h"
#include "cli/back/job/connect_part.h"
#include "cli/back/job/enter_part.h"
#include "cli/back/job/job_back.h"
#include "cli/back/job/other_hosts.h"
#include "cli/keeper/host_keeper.h"
#include "cli/text/failure.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

namespace {

constexpr int kPlanMs = 10'000;

Result<Answer> back_part(const Json& plan) {
  try {
    OtherHosts others(STDIN_FILENO, plan.at("connections"));
    if (plan.contains("lost")) CKPT_TRY(others.lose_a_host(plan.at("lost")));
    others.set_holder_of_callers(plan.value("keeps_callers", ""));
    if (plan.contains("cookie")) {
      CKPT_TRY(connect_part(plan, others));
      return Answer();
    }
    AskLimits limits;
    // Where a host has died all others wait until its part is restarted.
    limits.answer_ns = others.lost_a_host() ? 600'000'000'000 : 120'000'000'000;
    const ReachedPart part = reach_part(plan.at("part").get<std::string>());
    return back_job({part.path, limits, false, false, &others});
  } catch (const Json::exception& e) {
    return make_error(ExitCode::kUsage, 0, "back-part: got what it does not understand ({})", e.what());
  }
}

}  // namespace

ExitCode run_back_part() {
  signal(SIGPIPE, SIG_IGN);
  Json plan;
  if (isatty(STDIN_FILENO) != 0 || !read_line(STDIN_FILENO, plan, kPlanMs))
    return report(failure(ExitCode::kUsage, "back-part", "is started by an agent", "use ckpt back"));
  auto outside = enter_part(plan.value("first", 0));
  if (outside.ok() && outside->has_value()) return static_cast<ExitCode>(**outside);
  // CKPT_TEST_POINT="POINT@HOST=kill"
  static const std::string host = plan.value("host", "");
  static const int pid = getpid();
  if (const char* point = getenv("CKPT_TEST_POINT")) points::want(point, host.c_str(), &pid);
  auto answer = outside.ok() ? back_part(plan) : Result<Answer>(outside.error());
  if (!answer.ok()) {
    write_line(STDIN_FILENO, {{"say", "failed"},
                              {"code", static_cast<int>(answer.error().code)},
                              {"text", std::string(answer.error().message())}});
    return answer.error().code;
  }
  Json done{{"say", "done"}, {"notes", Json::array()}};
  for (const auto& [key, value] : *answer) {
    if (key == "note")
      done["notes"].push_back(value);
    else if (key != "directory")
      done[key] = std::strtoull(value.c_str(), nullptr, 10);
  }
  write_line(STDIN_FILENO, done);
  return ExitCode::kOk;
}

}  // namespace ckpt::cli
