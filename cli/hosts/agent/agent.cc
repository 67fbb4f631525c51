// ckpt agent: one on each host for the time of a job. It knows the job's secret, connects to the head,
// listens to nobody but this host's own user, and has the host's processes below it.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/hosts/agent/agent_warden.h"
#include "cli/hosts/agent/call_head.h"
#include "cli/hosts/agent/host_tables.h"
#include "cli/hosts/agent/local_checkpoint.h"
#include "cli/hosts/agent/part_check.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/placing.h"
#include "cli/hosts/posts.h"
#include "cli/keeper/host_keeper.h"
#include "cli/program/preload.h"
#include "cli/text/failure.h"
#include "cluster/protocol/agent_machine.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

using cluster::AgentAction;
using cluster::Order;
using cluster::SealedLink;
using cluster::Step;

// In the stop the agent waits for the head three quarters of CKPT_STOP_TIMEOUT (in_stop_ns_): less long than the
// coordinator waits for the agent.
constexpr int64_t kPreparedNs = 60'000'000'000, kInDoubtNs = 30'000'000'000;

class Agent {
 public:
  explicit Agent(Json task) : task_(std::move(task)) {}

  ExitCode run() {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    auto called = call_head(task_);
    if (!called.ok()) return report(called.error());
    link_ = std::move(called->link);
    address_ = std::move(called->own_address);
    loop();
    end_all();
    return ExitCode::kOk;
  }

 private:
  void tell(const Json& what) {
    if (link_.valid() && !link_.send(what.dump(-1, ' ', false, Json::error_handler_t::replace))) lose_head();
  }
  void cannot(const Error& error) {
    tell({{"say", "cannot"}, {"code", static_cast<int>(error.code)}, {"text", std::string(error.message())}});
  }

  void lose_head() {
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

  void loop() {
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
      if (speaks(exchange_, polls[4])) tell(said_in_exchange(exchange_.hear(), exchange_.id()));
      if (speaks(save_, polls[5])) tell(said_in_save(save_.hear(), save_.id()));
      if (speaks(back_, polls[6])) tell(said_in_back(back_.hear(), back_.id()));
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

  void hear_head() {
    std::vector<std::string> messages;
    const bool there = link_.receive(messages, false);
    for (const std::string& m : messages) {
      const Json j = Json::parse(m, nullptr, false);
      if (j.is_object()) obey(j);
    }
    if (!there) lose_head();
  }

  void obey(const Json& j) {
    const std::string say = j.value("say", "");
    if (say == "clock") {
      tell({{"say", "clock"}, {"ns", now_ns(CLOCK_REALTIME)}});
    } else if (say == "listen") {
      int port = 0;
      auto fd = listen_low(address_, &port);
      if (!fd.ok()) return cannot(fd.error());
      on_socket_ = std::move(*fd);
      tell({{"say", "listening"}, {"port", port}});
    } else if (say == "rank") {
      tell({{"say", "rank"}, {"yes", has_rank(j.value("rank", -1))}});
    } else if (say == "look") {
      tell({{"say", "part"}, {"ports", ports_of_part(j.value("part", ""))}});
    } else if (say == "start") {
      if (auto r = start(j); !r.ok()) cannot(r.error());
    } else if (say == "order") {
      attempt_ = j.value("attempt", 1u);
      full_ = j.value("full", false);
      stays_ = j.value("stays", false);
      leave_out_ = j.value("leave_out", "");
      cluster::AgentMachine::Actions out;
      machine_.ordered(j.value("id", uint64_t{0}), static_cast<Order>(j.value("order", 6)), out);
      act(out);
    } else if (say == "answer") {
      const auto it = askers_.find(j.value("number", 0));
      if (it == askers_.end()) return;
      write_line(it->second.get(), j);
      askers_.erase(it);
    } else if (say == "posts") {
      if (j.value("id", uint64_t{0}) == machine_.id() &&
          machine_.phase() == cluster::AgentMachine::Phase::kWorking)
        local_.tell(kStepContinue, mail_of(j));
    } else if (say == "connect" || say == "go") {
      if (restart_.valid()) (void)!write(restart_.get(), "g", 1);
    } else if (say == "wait") {
      // The head is making checks: it lives, and has not decided yet.
      if (j.value("id", uint64_t{0}) == machine_.id() && machine_.reached() == Step::kDurable &&
          deadline_ns_ != 0)
        deadline_ns_ = now_ns() + kInDoubtNs;
    } else if (say == "stands" || say == "end_here") {
      hear_of_move(say, j.value("id", uint64_t{0}));
    } else if (say == "stay") {
      give_up_parts(j.value("in", images_), job_, j.value("parts", std::vector<std::string>()));
    } else if (say == "save") {
      if (auto r = save_.begin(j["plan"]); !r.ok()) tell(said_in_save(said_of(r.error()), save_.id()));
    } else if (say == "have") {
      tell(has_part(j));
    } else if (say == "exchange") {
      if (auto r = exchange_.begin(j["plan"]); !r.ok())
        tell(said_in_exchange(said_of(r.error()), exchange_.id()));
    } else if (say == "exchange_go") {
      exchange_.go(j);
    } else if (say == "exchange_end") {
      exchange_.end();
    } else if (say == "back") {
      if (auto r = begin_back(j); !r.ok()) tell(said_in_back(said_of(r.error()), back_.id()));
    } else if (say == "reconnect") {
      if (auto r = reconnect(j); !r.ok()) tell(said_in_back(said_of(r.error()), back_.id()));
    } else if (say == "back_go") {
      back_.go({{"step", j.value("step", "")}});
    } else if (say == "back_stop") {
      back_.end();
    } else if (say == "back_end") {
      end_half_way(j.value("id", uint64_t{0}));
    } else if (say == "end") {
      done_ = true;
    }
  }

  // This host's processes go back in place, with those of other hosts. With a table: a host has died, and another one
  // has its processes.
  Result<void> begin_back(const Json& order) {
    Json plan = order["plan"];
    plan["keeps_callers"] = job_ + ":" + task_.value("host", "");
    const ReachedPart part = reach_part(plan.value("part", ""));
    const bool there = checksum_of_file(part.path + "/" + job::kManifestName) == plan.value("checksum", "");
    CKPT_TRY(back_.begin(plan));
    if (there && order.contains("table")) {
      Json table = order["table"];
      table["own"] = task_.value("host", "");
      auto written = write_host_tables(directory_, std::move(table), images_);
      if (!written.ok()) back_.end();
      return written;
    }
    if (there) return {};
    back_.end();
    return failure(ExitCode::kImageDamaged, plan.value("part", ""),
                   "is missing here, or is not the part that belongs to this checkpoint",
                   "name another checkpoint");
  }

  // Some of the job are as they were then, and some as they are now: none runs on.
  void end_half_way(uint64_t id) {
    const bool gone = end_descendants_standing(warden_.own_processes());
    back_.end();
    done_ = gone;
    tell({{"say", "gone"}, {"id", id}, {"yes", gone}});
  }

  // Threads stand behind this checkpoint, which waits for the head's word.
  bool stands_behind(uint64_t id) const {
    return id == machine_.id() && stays_ && machine_.reached() == Step::kDurable &&
           machine_.phase() == cluster::AgentMachine::Phase::kWaiting;
  }

  // Another host was left, where nothing of the job runs any more. This host's processes take their new sockets, and go on
  // when the head says that the checkpoint counts: no time-out lets them go on before, but the loss of the head.
  Result<void> reconnect(const Json& order) {
    if (!stands_behind(order.value("id", uint64_t{0})))
      return failure(ExitCode::kTimeout, "agent", "its processes do not stand any more", "try again");
    Json table = order["table"];
    table["own"] = task_.value("host", "");
    CKPT_TRY(write_host_tables(directory_, std::move(table), images_));
    deadline_ns_ = 0;
    const uint64_t cookie = std::strtoull(order.value("cookie", "").c_str(), nullptr, 16);
    back_.go({{"step", "ready"}});
    local_.tell(kStepReconnect, std::string(reinterpret_cast<const char*>(&cookie), sizeof(cookie)));
    return {};
  }

  // The job goes on elsewhere, if all of it stands everywhere: nothing runs on after the instant of the checkpoint.
  void hear_of_move(const std::string& say, uint64_t id) {
    const bool stands = stands_behind(id);
    if (stands) deadline_ns_ = now_ns() + kInDoubtNs;
    if (say == "stands") return tell({{"say", "stands"}, {"id", id}, {"yes", stands}});
    const bool gone = stands && end_descendants_standing(warden_.own_processes());
    if (gone) {
      local_.join();
      done_ = true;
    }
    tell({{"say", "gone"}, {"id", id}, {"yes", gone}});
  }

  Result<void> start(const Json& j) {
    job_ = j.value("job", "");
    recovers_ = j["table"].contains("silence_ms");
    in_stop_ns_ = j["table"].value("stop_timeout_ns", in_stop_ns_) / 4 * 3;
    directory_ = j.value("directory", "");
    const std::string cwd = bytes_in(j.value("cwd", Json("/")));
    if (chdir(cwd.c_str()) != 0 && chdir("/") != 0)
      return failure(ExitCode::kSystem, cwd, "cannot be entered", "make it");
    CKPT_TRY(make_host_directory(directory_));
    Json table = j["table"];
    table["own"] = task_.value("host", "");
    auto images = images_of_host(directory_, j);
    if (!images.ok()) return images.error();
    images_ = images->name;
    CKPT_TRY(write_host_tables(directory_, table, images_));
    setenv("CKPT_ON", (directory_ + "/" + kOnTable).c_str(), 1);
    auto users = listen_to_users(agent_socket_name(job_, task_.value("host", "")));
    if (!users.ok()) return users.error();
    users_ = std::move(*users);
    // Longer than the head's kernel may be silent here, and well ahead of the head's own patience.
    if (recovers_)
      CKPT_TRY(warden_.begin(job_, task_.value("host", ""),
                             task_.value("silence_ms", SealedLink::kSilenceMs) / 4 * 5));
    return j.contains("part") ? start_restart(j) : start_program(j);
  }

  Result<void> start_program(const Json& j) {
    const std::string here = own_directory(), on = here + "/ckpt-on", self = here + "/ckpt";
    std::vector<std::string> words{self, "run", "--", on, "--serve", std::to_string(on_socket_.get())};
    if (j.contains("program")) {
      words.push_back("--");
      for (const auto& w : j["program"]) words.push_back(bytes_in(w));
    }
    set_environment(j["settings"], images_, job_, task_.value("host", ""));
    set_launchers(on);
    if (!spawn(words, on_socket_.get()))
      return failure(ExitCode::kSystem, self, "no process for it", "see ulimit -u");
    on_socket_.reset();
    tell({{"say", "started"}, {"pid", child_}});
    return {};
  }

  Result<void> start_restart(const Json& j) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return failure(ExitCode::kSystem, "agent", "no socket for ckpt-restart", "see ulimit -n");
    restart_.reset(ends[0]);
    const ScopedFd theirs(ends[1]);
    const ReachedPart part = reach_part(j.value("part", ""));
    if (checksum_of_file(part.path + "/" + job::kManifestName) != j.value("checksum", ""))
      return failure(ExitCode::kImageDamaged, j.value("part", ""),
                     "is missing here, or is not the part that belongs to this checkpoint",
                     "copy it here, or share the directory");
    if (!write_line(restart_.get(), j["plan"]))
      return failure(ExitCode::kSystem, "agent", "socket", "report it");
    if (!spawn({own_directory() + "/ckpt-restart", "--hosts-fd", std::to_string(theirs.get()),
                j.value("part", "")},
               theirs.get()))
      return failure(ExitCode::kSystem, "ckpt-restart", "no process for it", "see ulimit -u");
    return {};
  }

  bool spawn(const std::vector<std::string>& words, int keep) {
    child_ = start_process(words, keep);
    return child_ > 0;
  }

  // ckpt-restart: {"say": "listening"}, {"say": "ready"}, {"say": "running", "pid": N}
  void hear_restart() {
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

  void look_for_end() {
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      warden_.reap(pid);
      if (pid != child_) continue;
      child_ = -1;
      // A program that ends as soon as it is back: the head hears first that it came back.
      for (pollfd said{restart_.get(), POLLIN, 0}; restart_.valid() && poll(&said, 1, 0) > 0;) hear_restart();
      tell(
          {{"say", "ended"}, {"status", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)}});
    }
  }

  void hear_user() {
    ScopedFd peer(accept4(users_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Json question;
    if (!peer.valid() || !is_own_user(peer.get()) || !read_line(peer.get(), question, 1000)) return;
    question["say"] = "ask";
    question["number"] = ++asked_;
    askers_[asked_] = std::move(peer);
    tell(question);
  }

  void hear_local() {
    for (LocalEvent& e : local_.take()) {
      if (e.posted) {
        tell(said_of_posts(e.lines, machine_.id()));
        continue;
      }
      if (e.reconnected) {
        tell(said_in_back({{"say", "step"}, {"step", "reconnected"}}, back_.id()));
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

  void act(const cluster::AgentMachine::Actions& actions) {
    using K = AgentAction::Kind;
    for (const AgentAction& a : actions) {
      switch (a.kind) {
        case K::kBegin: {
          // The one before may have failed because of a connection that nobody has accepted.
          if (attempt_ > 1) keep_unaccepted(job_ + ":" + task_.value("host", ""));
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
  void end_all() {
    warden_.come_round();
    restart_.reset();
    if (stuck_ || (recovers_ && !link_.valid())) end_descendants_standing(warden_.own_processes());
    end_descendants(warden_.own_processes());
    warden_.end();
    local_.join();
    if (!directory_.empty()) unlink((directory_ + "/" + kOnTable).c_str());
    users_
        .reset();  // last: the agent of the same job that comes next waits for it, and writes a table of its own
  }

  const Json task_;
  AgentWarden warden_;
  SealedLink link_;
  std::string address_, job_, directory_, images_, leave_out_;  // images_: where parts go
  ScopedFd on_socket_, users_, restart_;
  pid_t child_ = -1;
  int root_ = -1;  // of restarted processes, the first
  cluster::AgentMachine machine_;
  LocalCheckpoint local_;
  ExchangeProcess exchange_{"keeper-exchange"}, save_{"keeper-save"}, back_{"back-part"};
  Answer lines_;
  std::optional<Error> error_;
  uint32_t attempt_ = 1;
  bool full_ = false, stays_ = false, recovers_ = false;
  bool stuck_ = false;  // some processes here have new connections and some have not: none goes on
  int64_t deadline_ns_ = 0, in_stop_ns_ = 2'000'000'000;
  int asked_ = 0;
  std::map<int, ScopedFd> askers_;
  bool done_ = false;
};

}  // namespace

ExitCode run_agent() {
  signal(SIGPIPE, SIG_IGN);
  ignore_hangup();  // the head's word counts
  Json task;
  if (isatty(STDIN_FILENO) || !read_line(STDIN_FILENO, task, 10'000))
    return report(failure(ExitCode::kUsage, "agent",
                          "is started by ckpt run --hosts, which tells it what to do", "use that"));
  // What the program reads is not what the agent was told.
  const ScopedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  return Agent(std::move(task)).run();
}

}  // namespace ckpt::cli
