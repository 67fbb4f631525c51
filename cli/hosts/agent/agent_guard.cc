#include "cli/hosts/agent/agent_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <set>
#include <string>

#include "cli/hosts/agent/agent_beats.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// Later than the warden, which stops all processes before it ends the first; sooner than the head gives the
// host up.
int64_t guard_patience_ns(int patience_ms) { return int64_t{patience_ms} * 1'000'000 / 8 * 9; }

}  // namespace

Result<void> AgentGuard::begin(int beats, int patience_ms) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, "agent", "no pipe for its guard", "raise ulimit -n");
  pipe_.reset(ends[0]);
  const ScopedFd writing(ends[1]);
  const std::string self = own_directory() + "/ckpt", patience = std::to_string(patience_ms);
  guard_ = fork();
  if (guard_ == 0) {
    setpgid(0, 0);
    // Where the agent alone is killed, its files are closed by then: the warden ends the job's processes, in
    // order.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // By these it would be one of the job: to be saved, and to be ended.
    unsetenv("CKPT_JOB");
    unsetenv("CKPT_HOSTS");
    dup2(beats, STDIN_FILENO);
    dup2(writing.get(), STDOUT_FILENO);
    syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0);
    execl(self.c_str(), self.c_str(), "agent-guard", patience.c_str(), nullptr);
    _exit(127);
  }
  if (guard_ < 0) return failure(ExitCode::kSystem, "agent", "no process for its guard", "raise ulimit -u");
  guard_fd_.reset(static_cast<int>(syscall(SYS_pidfd_open, guard_, 0)));
  ScopedFd own = signal_to(getpid());
  if (!own.valid())
    return failure(ExitCode::kSystem, "agent",
                   fmt::format("no signal for the end of its guard ({})", strerror(errno)),
                   "look whether /proc is there");
  signals_.emplace(getpid(), std::move(own));
  return {};
}

// A file of its own, which has an owner and a signal of its own.
ScopedFd AgentGuard::signal_to(pid_t owner) const {
  ScopedFd file(
      open(fmt::format("/proc/self/fd/{}", pipe_.get()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.valid() && (fcntl(file.get(), F_SETSIG, SIGKILL) != 0 || fcntl(file.get(), F_SETOWN, owner) != 0 ||
                       fcntl(file.get(), F_SETFL, O_ASYNC | O_NONBLOCK) != 0))
    file.reset();
  return file;
}

void AgentGuard::take_in(pid_t warden) {
  if (guard_ <= 0) return;
  const pid_t self = getpid(), own_group = getpgrp();
  std::set<pid_t> owners{self};
  for (const int pid : descendants(self)) {
    if (pid == warden || pid == guard_) continue;
    const pid_t group = getpgid(pid);
    // 0: its group is of another namespace of processes.
    if (group >= 0) owners.insert(group == own_group || group == 0 ? pid : -group);
  }
  std::erase_if(signals_, [&](const auto& signal) { return !owners.contains(signal.first); });
  for (const pid_t owner : owners) {
    if (signals_.contains(owner)) continue;
    // The owner may have ended by now.
    if (ScopedFd file = signal_to(owner); file.valid()) signals_.emplace(owner, std::move(file));
  }
}

void AgentGuard::end() {
  signals_.clear();
  pipe_.reset();
  // By its descriptor: it may have been waited for, and its number be another's.
  if (guard_fd_.valid()) syscall(SYS_pidfd_send_signal, guard_fd_.get(), SIGKILL, nullptr, 0);
  guard_fd_.reset();
  guard_ = -1;
}

ExitCode run_agent_guard(int patience_ms) {
  const auto wrong = [](const char* what) {
    return report(failure(ExitCode::kUsage, "agent-guard", what, "use ckpt run --hosts"));
  };
  for (const int s : {SIGPIPE, SIGHUP, SIGINT, SIGTERM}) signal(s, SIG_IGN);
  void* page = mmap(nullptr, sizeof(AgentBeats), PROT_READ, MAP_SHARED, STDIN_FILENO, 0);
  if (page == MAP_FAILED) return wrong("is started by ckpt agent");
  const auto& beats = *static_cast<const AgentBeats*>(page);
  // Where all are thawed at once, it ends before the others run. Without the right to, it is one of them.
  const sched_param first{1};
  (void)!sched_setscheduler(0, SCHED_FIFO, &first);
  sigevent kill_me{};
  kill_me.sigev_notify = SIGEV_SIGNAL;
  kill_me.sigev_signo = SIGKILL;
  // By the kernel's own calls: older systems do not have these names of libc's.
  int timer = 0;
  if (syscall(SYS_timer_create, CLOCK_BOOTTIME, &kill_me, &timer) != 0) return wrong("has no timer");
  for (;;) {
    if (beats.over) return ExitCode::kOk;
    const int64_t until = beats.last_ns + guard_patience_ns(patience_ms);
    if (beat_clock_ns() >= until) return ExitCode::kUnavailable;
    const itimerspec at{{0, 0}, {until / 1'000'000'000, until % 1'000'000'000}};
    if (syscall(SYS_timer_settime, timer, TIMER_ABSTIME, &at, nullptr) != 0) return wrong("has no timer");
    (void)!poll(nullptr, 0, patience_ms / kBeatsAPatience + 1);
  }
}

}  // namespace ckpt::cli
