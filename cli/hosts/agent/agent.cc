#include "cli/hosts/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/agent/call_head.h"
#include "cli/hosts/agent/host_tables.h"
#include "cli/hosts/agent/part_check.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/job/users.h"
#include "cli/hosts/posts.h"
#include "cli/keeper/host_keeper.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

using cluster::AgentAction;
using cluster::Step;

// In the stop the agent waits for the head three quarters of CKPT_STOP_TIMEOUT (in_stop_ns_): less long than
// the coordinator waits for the agent.
constexpr int64_t kPreparedNs = 60'000'000'000;

}  // namespace

ExitCode Agent::run() {
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  auto called = call_head(task_);
  if (!called.ok()) return report(called.error());
  link_ = std::move(called->link);
  address_ = std::move(called->own_address);
  loop();
  end_all();
  return ExitCode::kOk;
}

void Agent::tell(const Json& what) {
  if (link_.valid() && !link_.send(what.dump(-1, ' ', false, Json::error_handler_t::replace))) lose_head();
}

void Agent::cannot(const Error& error) {
  tell({{"say", "cannot"}, {"code", static_cast<int>(error.code)}, {"text", std::string(error.message())}});
}

void Agent::lose_head() {
  if (!link_.valid()) return;
  link_.close();
  cluster::AgentMachine::Actions out;
  machine_.lost_head(out);
  act(out);
  for (auto& [number, asker] : askers_)
    write_line(asker.get(), {{"code", 70}, {"error", "the head of the job is gone"}});
  askers_.clear();
  // The job is about to go on elsewhere.
  done_ = done_ || recovers_;
}

void Agent::loop() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  while (!done_) {
    std::vector<pollfd> polls{{link_.valid() ? link_.fd() : -1, POLLIN, 0},
                              {local_.fd(), POLLIN, 0},
                              {users_.valid() ? users_.get() : -1, POLLIN, 0},
                              {restart_.valid() ? restart_.get() : -1, POLLIN, 0},
                              {exchange_.running() ? exchange_.fd() : -1, POLLIN, 0},
                              {save_.running() ? save_.fd() : -1, POLLIN, 0},
                              {back_.running() ? back_.fd() : -1, POLLIN, 0}};
    int wait = 200;  // also for the end of the host's first process
    if (deadline_ns_ != 0)
      wait = static_cast<int>(std::clamp<int64_t>((deadline_ns_ - now_ns()) / 1'000'000 + 1, 0, wait));
    (void)!poll(polls.data(), polls.size(), wait);
    warden_.come_round();
    if (polls[0].revents != 0) hear_head();
    if (polls[1].revents != 0) hear_local();
    if (polls[2].revents != 0) hear_user();
    if (polls[3].revents != 0) hear_restart();
    // hear_head() may have ended one of them, or begun another one.
    const auto speaks = [&](const auto& part, const pollfd& p) {
      return p.revents != 0 && part.running() && part.fd() == p.fd;
    };
    const auto pass_on = [&](ExchangeProcess& part, const pollfd& p, Json (*as)(Json, uint64_t)) {
      if (!speaks(part, p)) return;
      if (Json said = part.hear(); !said.is_null()) tell(as(std::move(said), part.id()));
    };
    pass_on(exchange_, polls[4], message_of_exchange);
    pass_on(save_, polls[5], message_of_save);
    pass_on(back_, polls[6], message_of_back);
    if (deadline_ns_ != 0 && now_ns() >= deadline_ns_) {
      deadline_ns_ = 0;
      cluster::AgentMachine::Actions out;
      machine_.timed_out(out);
      act(out);
    }
    look_for_end();
    // Without the head this host's processes run for no user: what they print goes nowhere.
    if (!link_.valid() && (stuck_ || machine_.phase() == cluster::AgentMachine::Phase::kIdle)) done_ = true;
  }
}

void Agent::hear_head() {
  std::vector<std::string> messages;
  const bool there = link_.receive(messages, false);
  for (const std::string& m : messages) {
    const Json j = Json::parse(m, nullptr, false);
    if (j.is_object()) obey(j);
  }
  if (!there) lose_head();
}

// ckpt-restart: {"say": "listening"}, {"say": "ready"}, {"say": "running", "pid": N}
void Agent::hear_restart() {
  Json line;
  if (!read_line(restart_.get(), line, 1000)) {
    restart_.reset();  // its end says why
    return;
  }
  if (line.value("say", "") == "running") {
    root_ = line.value("pid", 0);
    tell({{"say", "started"}, {"pid", root_}});
  } else {
    tell({{"say", line.value("say", "")}, {"port", 0}});
  }
}

void Agent::look_for_end() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    warden_.reap(pid);
    if (pid != child_) continue;
    child_ = -1;
    // A program that ends as soon as it is back: the head hears first that it came back.
    for (pollfd said{restart_.get(), POLLIN, 0}; restart_.valid() && poll(&said, 1, 0) > 0;) hear_restart();
    tell({{"say", "ended"}, {"status", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)}});
  }
}

void Agent::hear_user() {
  ScopedFd peer(accept4(users_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  Json question;
  if (!peer.valid() || !is_own_user(peer.get()) || !read_line(peer.get(), question, 1000)) return;
  question["say"] = "ask";
  question["number"] = ++asked_;
  askers_[asked_] = std::move(peer);
  tell(question);
}

void Agent::hear_local() {
  for (LocalEvent& e : local_.take()) {
    if (e.posted) {
      tell(message_of_posts(e.lines, machine_.id()));
      continue;
    }
    if (e.reconnected) {
      tell(message_of_back({{"say", "step"}, {"step", "reconnected"}}, back_.id()));
      continue;
    }
    stuck_ = stuck_ || e.stuck;  // the head hears of it from back-part
    if (e.stuck) continue;
    cluster::AgentMachine::Actions out;
    if (e.step != Step::kNone) {
      lines_ = std::move(e.lines);
      machine_.came_to(e.step, out);
    } else {
      local_.join();
      error_ = e.error;
      lines_ = std::move(e.lines);
      machine_.ended(out);
    }
    act(out);
    error_.reset();
  }
}

void Agent::act(const cluster::AgentMachine::Actions& actions) {
  using K = AgentAction::Kind;
  for (const AgentAction& a : actions) {
    switch (a.kind) {
      case K::kBegin: {
        // The one before may have failed because of a connection that nobody has accepted.
        if (attempt_ > 1) have_unaccepted_taken(job_ + ":" + task_.value("host", ""));
        HostsPart part{};
        part.id = a.id;
        part.attempt = attempt_;
        if (full_) part.flags |= kPartFull;
        if (stays_) part.flags |= kPartStays;
        task_.value("host", "").copy(part.host, sizeof(part.host) - 1);
        local_.begin(root_ > 0 ? root_ : child_, part, leave_out_);
        break;
      }
      case K::kContinue:
        local_.tell(kStepContinue);
        break;
      case K::kGiveUp:
        local_.tell(kStepGiveUp);
        break;
      case K::kKeepPart:
        local_.tell(kStepKeep);
        break;
      case K::kReached:
        tell(report_of_step(a.step, a.id, lines_, images_));
        break;
      case K::kFailed: {
        Json j{
            {"say", "failed"},
            {"id", a.id},
            {"code", static_cast<int>(ExitCode::kTimeout)},
            {"text", fmt::format("no word of the other hosts in time, when {}", cluster::name_of(a.step))}};
        if (error_) {
          j["code"] = static_cast<int>(error_->code);
          j["text"] = std::string(error_->message());
        }
        tell(j);
        break;
      }
      case K::kSetTimer:
        deadline_ns_ = now_ns() + (a.step == Step::kPrepared  ? kPreparedNs
                                   : a.step == Step::kDurable ? kInDoubtNs
                                                              : in_stop_ns_);
        break;
      case K::kStopTimer:
        deadline_ns_ = 0;
        break;
    }
  }
}

// The job is over, or its head is gone: nothing of it stays on this host.
void Agent::end_all() {
  warden_.come_round();
  restart_.reset();
  if (stuck_) end_descendants_standing(warden_.own_processes());
  if (ends_at_once_ || (recovers_ && !link_.valid())) kill_descendants(warden_.own_processes());
  end_descendants(warden_.own_processes());
  warden_.end();
  local_.join();
  exchange_.end();
  if (stay_ && keeper_part(images_) != 0) give_up_parts(images_, job_, *stay_);
  if (!directory_.empty()) unlink((directory_ + "/" + kOnTable).c_str());
  // Last: the agent of the same job that comes next waits for it, and writes a table of its own.
  users_.reset();
}

ExitCode run_agent() {
  signal(SIGPIPE, SIG_IGN);
  ignore_hangup();  // the head's word counts
  Json task;
  if (isatty(STDIN_FILENO) || !read_line(STDIN_FILENO, task, 10'000))
    return report(failure(ExitCode::kUsage, "agent",
                          "is started by ckpt run --hosts, which tells it what to do", "use that"));
  // The program must not read from the agent's standard input, by which the agent was told its task.
  const ScopedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  return Agent(std::move(task)).run();
}

}  // namespace ckpt::cli
