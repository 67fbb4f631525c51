#include "cli/back/job/late_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/back/process_back.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

// A process that is known to be between fork, exec and the library's start gets there, on a machine that is
// taken by others late. Any other may just be about to end.
constexpr int64_t kStartNs = 30'000'000'000, kEndNs = 5'000'000'000;

}  // namespace

std::string label_of(int pid, const std::string& name) {
  return fmt::format("{} ({})", pid, printable(name));
}

void wait_a_moment() {
  const timespec moment{0, 5'000'000};
  nanosleep(&moment, nullptr);
}

Result<void> LateProcesses::add(const JobProcess& process, uint32_t members, const AskLimits& limits,
                                int64_t waited_ns) {
  const std::string label = label_of(process.pid, process.name);
  if (borrows_memory(process)) {
    if (waited_ns < kStartNs) {
      wait_a_moment();
      return {};
    }
    return failure(ExitCode::kUnsupported, label,
                   "was born since the checkpoint and uses its parent's memory (vfork)",
                   "end it first; nothing was changed");
  }
  bool starting = false;
  auto asked = ask_to_stand(process, members, limits, starting);
  if (asked.ok()) return {};
  JobProcess now;
  if (!look_at_process(process.pid, now) || now.ended() || now.started != process.started) return {};
  if (waited_ns < (starting ? kStartNs : kEndNs)) {
    wait_a_moment();
    return {};
  }
  return failure(
      ExitCode::kUnsupported, label,
      fmt::format("was born since the checkpoint and cannot be stopped: {}", asked.error().message()),
      "end it first; nothing was changed");
}

Result<void> LateProcesses::ask_to_stand(const JobProcess& process, uint32_t members, const AskLimits& limits,
                                         bool& starting) {
  auto target = examine_target(process.pid, &starting);
  if (!target.ok()) return target.error();
  auto late = std::make_unique<Process>();
  late->target = std::move(*target);
  // A signal that falls between fork and the library's notice of it is lost: then it is sent again.
  AskLimits brief;
  brief.answer_ns = 1'000'000'000;
  brief.total_ns = brief.answer_ns;
  AskOptions options;
  options.back_of_job = true;
  auto connection = call(late->target, ControlOperation::kBack, brief, options);
  starting = !connection.ok() && connection.error().code == ExitCode::kTimeout;
  if (!connection.ok()) return connection.error();
  late->connection = std::move(*connection);
  BackOrder order{};
  order.flags = kBackOnlyStands;
  order.patience_s = static_cast<uint32_t>(std::max<int64_t>(limits.answer_ns / 1'000'000'000, 120));
  order.members = members;
  auto gate = open_gate({0, members, gate_.fd()}, false);
  if (!gate.ok()) return gate.error();
  if (!send_order(late->connection.get(), order, {gate->get()}))
    return failure(ExitCode::kInternal, label_of(process.pid, process.name), "hung up", "try again");
  CKPT_TRY(hear(*late, limits, BackSays::kHeld));
  processes_.push_back(std::move(late));
  return {};
}

Result<void> LateProcesses::hear(const Process& process, const AskLimits& limits, BackSays what) {
  BackMessage heard{};
  CKPT_TRY(read_exactly(process.target, process.connection.get(), limits, &heard, sizeof(heard)));
  if (heard.says == static_cast<uint32_t>(what)) return {};
  heard.text[sizeof(heard.text) - 1] = '\0';
  return make_error(static_cast<ExitCode>(heard.code), 0, "{}: {}",
                    label_of(process.target.pid, process.target.name), printable(heard.text));
}

bool LateProcesses::has(int pid) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const auto& p) { return p->target.pid == pid; });
}

std::vector<int32_t> LateProcesses::pids() const {
  std::vector<int32_t> all;
  for (const auto& p : processes_) all.push_back(p->target.pid);
  return all;
}

void LateProcesses::reply(BackReplyKind kind) const {
  const BackReply reply{static_cast<uint32_t>(kind), 0, 0, 0};
  for (const auto& p : processes_) (void)send(p->connection.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
}

void LateProcesses::let_stand() const { reply(BackReplyKind::kGo); }

void LateProcesses::give_up() const { reply(BackReplyKind::kGiveUp); }

Result<void> LateProcesses::hear_standing(const AskLimits& limits) const {
  for (const auto& p : processes_) CKPT_TRY(hear(*p, limits, BackSays::kStanding));
  return {};
}

void LateProcesses::kill() const {
  for (const auto& p : processes_) syscall(SYS_pidfd_send_signal, p->target.pidfd.get(), SIGKILL, nullptr, 0);
}

Result<void> LateProcesses::wait_for_end(int64_t patience_ns) const {
  for (const auto& p : processes_) {
    pollfd gone{p->target.pidfd.get(), POLLIN, 0};
    const int64_t until = now_ns() + patience_ns;
    while (poll(&gone, 1, 1000) <= 0) {
      if (now_ns() < until) continue;
      return failure(ExitCode::kTimeout, label_of(p->target.pid, p->target.name),
                     "was killed and does not end", "see what it waits for");
    }
  }
  return {};
}

}  // namespace ckpt::cli
