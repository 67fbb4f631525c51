#include "cli/hosts/agent/agent_warden.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/job/ask_job.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

// Work that the agent's thread does at a stretch: starting a keeper of a large memory, for one.
constexpr int64_t kLongestRoundNs = 60'000'000'000;
constexpr int64_t kStopNs = 5'000'000'000;

// All that the job has here: below the agent, if that lives, and what was left to others when an agent was
// killed.
std::set<int> processes_of(const std::string& job, pid_t agent) {
  std::set<int> all;
  const auto add_below = [&all](int pid) {
    for (const int below : descendants(pid)) all.insert(below);
  };
  if (agent > 0) add_below(agent);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir("/proc"), closedir);
  while (dir != nullptr) {
    const dirent* e = readdir(dir.get());
    if (e == nullptr) break;
    const int pid = atoi(e->d_name);
    if (pid <= 0 || !hosts_of_process(pid).starts_with(job + ":")) continue;
    all.insert(pid);
    add_below(pid);
  }
  all.erase(getpid());
  std::erase_if(all, has_ended);
  return all;
}

// None runs on because another has ended: so all are stopped before the first is ended.
void end_all_of(const std::string& job, pid_t agent) {
  const int64_t until = now_ns() + kStopNs;
  for (bool all = false; !all && now_ns() < until;) {
    const std::set<int> left = processes_of(job, agent);
    all = true;
    for (const int pid : left) kill(pid, SIGSTOP);
    for (const int pid : left) all = all && is_stopped(pid);
    if (!all) (void)!poll(nullptr, 0, 1);
  }
  for (std::set<int> left = processes_of(job, agent); !left.empty(); left = processes_of(job, agent)) {
    // Children first: one whose parent ends may be continued by the kernel.
    for (auto pid = left.rbegin(); pid != left.rend(); ++pid) kill(*pid, SIGKILL);
    (void)!poll(nullptr, 0, 2);
  }
}

}  // namespace

Result<void> AgentWarden::begin(const std::string& job, const std::string& host, int patience_ms) {
  if (runs()) return {};
  job_ = job;
  host_ = host;
  patience_ms_ = patience_ms;
  memory_.reset(memfd_create("ckpt beats", MFD_CLOEXEC));
  void* page = MAP_FAILED;
  if (memory_.valid() && ftruncate(memory_.get(), sizeof(AgentBeats)) == 0)
    page = mmap(nullptr, sizeof(AgentBeats), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (page == MAP_FAILED)
    return failure(ExitCode::kSystem, "agent", "no memory for its warden", "raise ulimit -v");
  beats_ = static_cast<AgentBeats*>(page);
  come_round();
  if (!start()) return failure(ExitCode::kSystem, "agent", "no process for its warden", "raise ulimit -u");
  CKPT_TRY(guard_.begin(memory_.get(), patience_ms_));
  thread_ = std::thread([this] { beat(); });
  return {};
}

void AgentWarden::come_round() { round_ns_ = now_ns(); }

void AgentWarden::beat() {
  std::unique_lock<std::mutex> hold(lock_);
  while (!stops_) {
    if (now_ns() - round_ns_ < kLongestRoundNs) beats_->last_ns = beat_clock_ns();
    guard_.take_in(warden_);
    stopped_.wait_for(hold, std::chrono::milliseconds(patience_ms_ / kBeatsAPatience + 1));
  }
}

void AgentWarden::reap(pid_t ended) {
  if (ended != warden_) return;
  warden_ = -1;
  (void)start();
}

void AgentWarden::end() {
  if (beats_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    stops_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
  guard_.end();
  beats_->over = true;
  // By its descriptor: it may have been waited for, and its number be another's.
  if (warden_fd_.valid()) syscall(SYS_pidfd_send_signal, warden_fd_.get(), SIGKILL, nullptr, 0);
  warden_fd_.reset();
  warden_ = -1;
  munmap(beats_, sizeof(AgentBeats));
  beats_ = nullptr;
}

// A program of its own: `ps` tells it from the agent, and it has none of the agent's connections.
bool AgentWarden::start() {
  beats_->last_ns = beat_clock_ns();
  const std::string self = own_directory() + "/ckpt", patience = std::to_string(patience_ms_);
  const std::string agent = std::to_string(getpid());
  warden_ = fork();
  if (warden_ > 0) warden_fd_.reset(static_cast<int>(syscall(SYS_pidfd_open, warden_.load(), 0)));
  if (warden_ != 0) return warden_ > 0;
  setpgid(0, 0);
  // By these it would be one of the job: to be saved, and to be ended.
  unsetenv("CKPT_JOB");
  unsetenv("CKPT_HOSTS");
  dup2(memory_.get(), STDIN_FILENO);
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0);
  execl(self.c_str(), self.c_str(), "agent-warden", job_.c_str(), host_.c_str(), agent.c_str(),
        patience.c_str(), nullptr);
  _exit(127);
}

ExitCode run_agent_warden(const std::string& job, const std::string& host, int agent, int patience_ms) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  const ScopedFd watched(static_cast<int>(syscall(SYS_pidfd_open, agent, 0)));
  void* page = mmap(nullptr, sizeof(AgentBeats), PROT_READ, MAP_SHARED, STDIN_FILENO, 0);
  // Its parent is the agent, unless that has ended: then the number may be another's.
  const bool is_parent = getppid() == agent;
  if (page == MAP_FAILED || (is_parent && !watched.valid()))
    return report(
        failure(ExitCode::kUsage, "agent-warden", "is started by ckpt agent", "use ckpt run --hosts"));
  const auto& beats = *static_cast<const AgentBeats*>(page);
  const int64_t patience_ns = int64_t{patience_ms} * 1'000'000;
  for (;;) {
    pollfd end{watched.get(), POLLIN, 0};
    const bool has_died = !is_parent || poll(&end, 1, patience_ms / kBeatsAPatience + 1) > 0;
    if (beats.over) return ExitCode::kOk;
    const bool hangs = beat_clock_ns() - beats.last_ns > patience_ns;
    if (!has_died && !hangs) continue;
    // Where both were frozen, the agent was killed before the warden could look.
    fmt::print(stderr,
               "ckpt: {}: its agent {}: the job's processes there are ended, for it goes on elsewhere\n",
               printable(host), hangs ? "hangs" : "was killed");
    fflush(stderr);
    end_all_of(job, has_died ? 0 : agent);
    if (!has_died) syscall(SYS_pidfd_send_signal, watched.get(), SIGKILL, nullptr, 0);
    return ExitCode::kOk;
  }
}

}  // namespace ckpt::cli
