#include "restart/tree/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "restart/tree/stage_text.h"

namespace ckpt {
namespace {

sigset_t watched_signals() {
  sigset_t set;
  sigfillset(&set);
  // Not watched: faults, which are ours when they happen; SIGTTIN and SIGTTOU, upon which the program stops
  // itself and we stop with it (reap()).
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGTTIN, SIGTTOU}) sigdelset(&set, s);
  return set;
}

void send_signal(int pidfd, int signal, siginfo_t* info) {
  if (pidfd >= 0) sys::call(__NR_pidfd_send_signal, pidfd, signal, info, 0L);
}

// As in /proc/PID/stat: 'R', 'S', 'T' and so on; '\0': there is no such process.
char process_state(int pid) {
  std::unique_ptr<FILE, int (*)(FILE*)> f(std::fopen(fmt::format("/proc/{}/stat", pid).c_str(), "re"),
                                          std::fclose);
  char line[256] = {};
  if (!f || std::fgets(line, sizeof(line), f.get()) == nullptr) return '\0';
  const char* after_name = std::strrchr(line, ')');
  return after_name != nullptr && after_name[1] == ' ' ? after_name[2] : '\0';
}

}  // namespace

int outer_pid_of(int pidfd) {
  std::string path = fmt::format("/proc/self/fdinfo/{}", pidfd);
  std::unique_ptr<FILE, int (*)(FILE*)> f(std::fopen(path.c_str(), "re"), std::fclose);
  char line[128];
  int pid = 0;
  while (f && std::fgets(line, sizeof(line), f.get()) != nullptr) {
    if (std::sscanf(line, "Pid: %d", &pid) == 1) return pid;
  }
  return 0;
}

void wait_until_stopped(std::span<const int> pids) {
  constexpr int64_t kLongestNs = 1'000'000'000, kEachNs = 200'000;
  const auto is_to_stop = [](int pid) {
    const char state = process_state(pid);
    return state != 'T' && state != 't' && state != 'Z' && state != 'X' && state != '\0';
  };
  for (const int64_t until = now_ns() + kLongestNs;
       now_ns() < until && std::ranges::any_of(pids, is_to_stop);) {
    const timespec each{0, kEachNs};
    nanosleep(&each, nullptr);
  }
}

// Is the program to get a signal that the kernel sent to us? A signal of the terminal goes to its whole
// foreground process group: the program has it already, unless it is in a session of its own.
bool Supervisor::passes_on_from_kernel(int signal) const {
  return place_ == JobPlace::kOwnSession && (signal == SIGINT || signal == SIGQUIT || signal == SIGTSTP);
}

Supervisor::Supervisor(Launched launched, ReportChannel report, ScopedFd status_fd, MappingName mapping_name,
                       Loader* loader, JobPlace place)
    : launched_(std::move(launched)),
      report_(std::move(report)),
      status_fd_(std::move(status_fd)),
      mapping_name_(std::move(mapping_name)),
      loader_(loader),
      place_(place) {
  sigset_t set = watched_signals();
  signals_ = ScopedFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  fcntl(status_fd_.get(), F_SETFL, O_NONBLOCK);
  if (launched_.pidfd.valid()) outcome_.outer_pid = outer_pid_of(launched_.pidfd.get());
}

void Supervisor::block_signals() {
  sigset_t set = watched_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

Result<Outcome> Supervisor::wait_until_running() {
  for (;;) {
    read_reports();
    auto stages = read_stages();
    // The process may have gone because of what it reported first.
    read_reports();
    if (reported_error_ || !stages.ok()) {
      end_child();
      return reported_error_ ? *reported_error_ : stages.error();
    }
    if (outcome_.stage == RestartStage::kGo) return outcome_;
    reap();
    watch_loader();
    if (loader_ != nullptr && loader_->error()) {
      end_child();
      return *loader_->error();
    }
    if (child_gone_ || ended_) {
      read_reports();
      if (reported_error_) return *reported_error_;
      CKPT_TRY(read_stages());
      if (outcome_.stage == RestartStage::kGo) return outcome_;  // ran and ended already
      return death_error(ended_.value_or(0));
    }
    pollfd wait_for[4] = {{status_fd_.get(), POLLIN, 0},
                          {report_.fd(), POLLIN, 0},
                          {signals_.get(), POLLIN, 0},
                          {loader_ != nullptr ? loader_->pidfd() : -1, POLLIN, 0}};
    // Both are closed (-1) at their ends: from then on only the child's end matters, which SIGCHLD tells.
    if (poll(wait_for, 4, -1) < 0 && errno != EINTR) {
      return make_error(ExitCode::kSystem, errno, "poll failed ({})", errno_name(errno));
    }
    if (wait_for[2].revents != 0) forward_signals();
  }
}

Result<void> Supervisor::read_stages() {
  while (status_fd_.valid()) {
    RestartStatus status;
    ssize_t n = read(status_fd_.get(), &status, sizeof(status));
    if (n == 0) status_fd_.reset();
    if (n != static_cast<ssize_t>(sizeof(status))) break;
    auto stage = static_cast<RestartStage>(status.stage);
    if (status.error != 0) return stage_error(status, mapping_name_);
    reached(stage);
    if (stage == RestartStage::kMm) outcome_.restorer_notes = status.detail;
    if (stage == RestartStage::kThreadState) outcome_.library_notes = status.detail;
    if (stage == RestartStage::kGo) {
      // The process closes its end next, before any of its threads goes on: a look at /proc after this sees
      // its own descriptors only. (A child of an after-restart callback may hold the pipe longer.)
      constexpr int kLongestMs = 1000;
      pollfd closed{status_fd_.get(), POLLIN, 0};
      poll(&closed, 1, kLongestMs);
      status_fd_.reset();
      if (status.detail == kStopsItself && outcome_.outer_pid > 0)
        wait_until_stopped({&outcome_.outer_pid, 1});
    }
  }
  return {};
}

void Supervisor::reached(RestartStage stage) {
  auto i = static_cast<size_t>(stage);
  if (i >= kRestartStages) return;
  if (outcome_.stage < stage) outcome_.stage = stage;
  outcome_.stage_ns[i] = now_ns();
}

void Supervisor::read_reports() {
  report_.receive_all([this](Report& report, ScopedFd pidfd) { take_report(report, std::move(pidfd)); });
}

void Supervisor::take_report(const Report& report, ScopedFd pidfd) {
  switch (report.kind) {
    case ReportKind::kNote:
      if (report.value != 0 && say_at_once_)
        say_at_once_(report.text);
      else
        outcome_.notes.emplace_back(report.text);
      break;
    case ReportKind::kError:
      if (!reported_error_) {
        reported_error_ = make_error(static_cast<ExitCode>(report.code), report.sys_errno, "{}",
                                     static_cast<const char*>(report.text));
      }
      break;
    case ReportKind::kStage:
      reached(static_cast<RestartStage>(report.value));
      break;
    case ReportKind::kProgram:
      launched_.pidfd = std::move(pidfd);
      outcome_.outer_pid = outer_pid_of(launched_.pidfd.get());
      break;
    case ReportKind::kStopped:
      // The shell sees us stop as it would see the program; it continues both.
      raise(SIGSTOP);
      send_signal(launched_.pidfd.get(), SIGCONT, nullptr);
      break;
    case ReportKind::kEnded:
      ended_ = report.value;
      break;
    case ReportKind::kProceed:
    case ReportKind::kDetach:
    case ReportKind::kBorn:
    case ReportKind::kClocks:
      break;
  }
}

void Supervisor::forward_signals() {
  signalfd_siginfo got;
  while (read(signals_.get(), &got, sizeof(got)) == static_cast<ssize_t>(sizeof(got))) {
    int signal = static_cast<int>(got.ssi_signo);
    if (signal == SIGCHLD || (got.ssi_code == SI_KERNEL && !passes_on_from_kernel(signal))) continue;
    if (got.ssi_code != SI_QUEUE) {
      send_signal(launched_.pidfd.get(), signal, nullptr);
      continue;
    }
    siginfo_t info{};
    info.si_signo = signal;
    info.si_code = SI_QUEUE;
    info.si_pid = static_cast<pid_t>(got.ssi_pid);
    info.si_uid = got.ssi_uid;
    info.si_value.sival_ptr = reinterpret_cast<void*>(got.ssi_ptr);
    send_signal(launched_.pidfd.get(), signal, &info);
  }
}

void Supervisor::reap() {
  int status = 0;
  for (;;) {
    const pid_t pid = child_gone_ ? 0 : waitpid(adopts_ ? -1 : launched_.child, &status, WNOHANG | WUNTRACED);
    if (pid <= 0) return;
    if (pid != launched_.child) continue;  // an orphan of the job
    if (WIFSTOPPED(status)) {
      if (launched_.through_init) continue;
      raise(SIGSTOP);
      send_signal(launched_.pidfd.get(), SIGCONT, nullptr);
      continue;
    }
    child_gone_ = true;
    if (!launched_.through_init) ended_ = status;
    // Killed from outside: the kernel has killed the namespace with it.
    if (launched_.through_init && !ended_) {
      read_reports();
      if (!ended_) ended_ = WIFSIGNALED(status) ? status : SIGKILL;
    }
  }
}

void Supervisor::watch_loader() {
  if (loader_ == nullptr || loader_->pidfd() < 0) return;
  loader_->reap();
  // The guard does it too; but both may have been killed.
  if (loader_->error()) send_signal(launched_.pidfd.get(), SIGKILL, nullptr);
}

Error Supervisor::death_error(int status) const {
  const char* after = stage_name(outcome_.stage);
  if (WIFSIGNALED(status)) {
    return make_error(
        ExitCode::kInternal, 0,
        "the new process was killed by signal {} after the stage \"{}\": out of memory (dmesg tells), "
        "or a fault in the restart; the image is unharmed",
        WTERMSIG(status), after);
  }
  return make_error(ExitCode::kInternal, 0,
                    "the new process ended with status {} after the stage \"{}\"; the image is unharmed",
                    WEXITSTATUS(status), after);
}

void Supervisor::end_child() {
  if (child_gone_) return;
  kill(launched_.child, SIGKILL);
  while (waitpid(launched_.child, nullptr, 0) < 0 && errno == EINTR) {
  }
  child_gone_ = true;
}

int Supervisor::wait_until_ended(const std::function<void()>& loaded) {
  for (bool said = false;;) {
    read_reports();
    reap();
    watch_loader();
    if (loader_ != nullptr && loader_->loaded() && !said) {
      said = true;
      loaded();
    }
    if (ended_) return *ended_;
    pollfd wait_for[3] = {{report_.fd(), POLLIN, 0},
                          {signals_.get(), POLLIN, 0},
                          {loader_ != nullptr ? loader_->pidfd() : -1, POLLIN, 0}};
    if (poll(wait_for, 3, -1) < 0 && errno != EINTR) {
      // Out of memory, perhaps: the end can be waited for without.
      siginfo_t ignored;
      waitid(P_PID, static_cast<id_t>(launched_.child), &ignored, WEXITED | WNOWAIT);
    }
    if (wait_for[1].revents != 0) forward_signals();
  }
}

void Supervisor::send(int signal) { send_signal(launched_.pidfd.get(), signal, nullptr); }

void Supervisor::detach() {
  if (launched_.through_init) report_.send(ReportKind::kDetach, 0);
  if (loader_ != nullptr) loader_->detach();
}

void end_like(int wait_status) {
  if (!WIFSIGNALED(wait_status)) _exit(WEXITSTATUS(wait_status));
  int signal_number = WTERMSIG(wait_status);
  // 1, not 0: with 0 the kernel still starts a program that core dumps are piped to.
  const rlimit no_core{1, 1};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(signal_number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  kill(getpid(), signal_number);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  _exit(128 + signal_number);
}

}  // namespace ckpt
