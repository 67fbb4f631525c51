#include "restart/job/job_supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "restart/channels/hosts_plan.h"
#include "restart/plan/memory/memory_plan.h"
#include "restart/tree/stage_text.h"

namespace ckpt {
namespace {

void kill_by(const ScopedFd& pidfd) {
  if (pidfd.valid()) sys::call(__NR_pidfd_send_signal, pidfd.get(), SIGKILL, 0L, 0L);
}

bool has_ended(const ScopedFd& pidfd) {
  pollfd p{pidfd.get(), POLLIN, 0};
  return pidfd.valid() && poll(&p, 1, 0) == 1;
}

// The signals that end a program, as far as whoever started ckpt-restart has them end it. They are blocked.
sigset_t end_signals() {
  sigset_t all;
  sigemptyset(&all);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&all, number);
  }
  return all;
}

std::string offset_line(int clock, int64_t ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  int64_t seconds = ns / kSecond, rest = ns % kSecond;
  if (rest < 0) {
    rest += kSecond;
    --seconds;
  }
  return fmt::format("{} {} {}\n", clock, seconds, rest);
}

}  // namespace

JobSupervisor::JobSupervisor(const JobPlan& job, Launched launched, ReportChannel report,
                             JobChannels channels, Meeting& meeting)
    : job_(job),
      launched_(std::move(launched)),
      report_(std::move(report)),
      channels_(std::move(channels)),
      meeting_(meeting),
      processes_(job.births.births.size()),
      birth_of_(job.plans.size(), -1),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      end_signals_(end_signals()),
      ends_(signalfd(-1, &end_signals_, SFD_CLOEXEC | SFD_NONBLOCK)) {
  for (size_t i = 0; i < job.births.births.size(); ++i) {
    const Birth& b = job.births.births[i];
    if (b.member >= 0 && b.stays()) birth_of_[static_cast<size_t>(b.member)] = static_cast<int>(i);
  }
  outcome_.outer_pids.resize(job.plans.size(), 0);
  for (size_t m = 0; m < job.plans.size(); ++m) {
    if (job.plans[m] == nullptr) continue;
    ++members_;
    if (birth_of_[m] >= 0 && how_stopped(job.manifest, job.manifest.members[m]) == RestartStopped::kLate) {
      processes_[static_cast<size_t>(birth_of_[m])].late = true;
      ++late_;
    }
    fcntl(channels_.status[m].get(), F_SETFL, O_NONBLOCK);
  }
  // In the present namespace the planter is our own child; else its pidfd comes from the init.
  if (!launched_.through_init) planter_ = std::move(launched_.pidfd);
}

int JobSupervisor::asked_to_end() const {
  sigset_t pending;
  sigpending(&pending);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&end_signals_, number) == 1 && sigismember(&pending, number) == 1) return number;
  }
  return 0;
}

void JobSupervisor::give_up(const Error& error) {
  {
    std::lock_guard guard(lock_);
    if (!from_elsewhere_) from_elsewhere_ = error;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

Result<JobOutcome> JobSupervisor::wait_until_running() {
  for (;;) {
    read_reports();
    for (size_t m = 0; m < job_.plans.size() && !error_; ++m) {
      if (job_.plans[m] == nullptr) continue;
      if (auto r = read_stages(m); !r.ok()) error_ = name_it(r.error(), birth_of_[m]);
    }
    if (!error_) {
      auto r = look_for_ends();
      if (r.ok()) r = watch_planter();
      if (!r.ok()) {
        read_reports();  // what it said before
        if (!error_) error_ = r.error();
      }
    }
    if (!error_) {
      std::lock_guard guard(lock_);
      error_ = from_elsewhere_;
    }
    // From then on such a signal is the program's.
    if (const int number = late_went_ || went_ ? 0 : asked_to_end(); !error_ && number != 0) {
      ended_by_ = number;
      error_ = make_error(ExitCode::kInternal, EINTR,
                          "ended by signal {} before the job ran: nothing of it is left", number);
    }
    if (error_) {
      end_all();
      return *error_;
    }
    if (!together_ && all_reached(RestartStage::kMemory)) {
      together_ = true;
      points::at("restart.memory");
      set_clocks();
      let(channels_.together, members_ + 1);
    }
    if (!went_ && all_reached(RestartStage::kThreadState)) {
      if (auto all = release_members(); !all.ok()) {
        end_all();
        return all.error();
      }
    }
    if (all_reached(RestartStage::kGo)) {
      points::at("restart.runs");
      wait_until_closed();
      read_reports();
      return outcome_;
    }
    std::vector<pollfd> wait_for = {{report_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (!late_went_ && !went_) wait_for.push_back({ends_.get(), POLLIN, 0});
    if (!planter_gone_) wait_for.push_back({planter_.get(), POLLIN, 0});
    for (const ScopedFd& fd : channels_.status) {
      if (fd.valid()) wait_for.push_back({fd.get(), POLLIN, 0});
    }
    for (const Process& p : processes_) {
      if (p.pidfd.valid() && !p.gone) wait_for.push_back({p.pidfd.get(), POLLIN, 0});
    }
    if (poll(wait_for.data(), wait_for.size(), -1) < 0 && errno != EINTR) {
      error_ = make_error(ExitCode::kSystem, errno, "poll failed ({})", errno_name(errno));
    }
  }
}

// A member that continues another one sends the signal when that one has stopped: first those that stop go.
Result<void> JobSupervisor::release_members() {
  if (!late_went_) {
    late_went_ = true;
    if (hosts_plan() != nullptr) CKPT_TRY(hosts_plan()->say_ready_and_wait());
    points::at("restart.ready");
    let(channels_.late_go, late_);
  }
  const auto is_on_its_way = [](const Process& p) { return p.late && p.stage < RestartStage::kGo; };
  if (std::ranges::any_of(processes_, is_on_its_way)) return {};
  await_stops();
  went_ = true;
  let(channels_.go, members_ - late_);
  return {};
}

void JobSupervisor::await_stops() {
  std::vector<int> stop;
  for (Process& p : processes_) {
    const int pid = std::exchange(p.stops, false) ? outer_pid_of(p.pidfd.get()) : 0;
    if (pid > 0) stop.push_back(pid);
  }
  wait_until_stopped(stop);
}

void JobSupervisor::read_reports() {
  report_.receive_all([this](Report& report, ScopedFd pidfd) { take_report(report, std::move(pidfd)); });
}

void JobSupervisor::take_report(Report& report, ScopedFd pidfd) {
  const auto who = static_cast<size_t>(report.who);
  switch (report.kind) {
    case ReportKind::kNote:
      note(report);
      break;
    case ReportKind::kError:
      if (!error_) {
        error_ = name_it(make_error(static_cast<ExitCode>(report.code), report.sys_errno, "{}",
                                    static_cast<const char*>(report.text)),
                         report.who);
      }
      break;
    case ReportKind::kStage:
      if (report.who >= 0 && who < processes_.size() && job_.births.births[who].member >= 0)
        reached(static_cast<size_t>(job_.births.births[who].member), static_cast<RestartStage>(report.value));
      break;
    case ReportKind::kProgram:
      planter_ = std::move(pidfd);
      break;
    case ReportKind::kBorn:
      if (report.value >= 0 && static_cast<size_t>(report.value) < processes_.size()) {
        const auto i = static_cast<size_t>(report.value);
        processes_[i].pidfd = std::move(pidfd);
        const Birth& b = job_.births.births[i];
        if (b.stays())
          outcome_.outer_pids[static_cast<size_t>(b.member)] = outer_pid_of(processes_[i].pidfd.get());
      }
      break;
    case ReportKind::kClocks:
      clocks_ = std::move(pidfd);
      std::memcpy(outer_clocks_, report.text, sizeof(outer_clocks_));
      break;
    case ReportKind::kStopped:
    case ReportKind::kEnded:
      outcome_.of_program.push_back(report);
      break;
    case ReportKind::kProceed:
    case ReportKind::kDetach:
      break;
  }
}

Result<void> JobSupervisor::read_stages(size_t m) {
  ScopedFd& fd = channels_.status[m];
  while (fd.valid()) {
    RestartStatus status;
    const ssize_t n = read(fd.get(), &status, sizeof(status));
    if (n == 0) fd.reset();
    if (n != static_cast<ssize_t>(sizeof(status))) break;
    if (status.error != 0) {
      return stage_error(status,
                         [&](uint32_t index) { return mapping_name(job_.plans[m]->image->meta(), index); });
    }
    const auto stage = static_cast<RestartStage>(status.stage);
    reached(m, stage);
    if (stage == RestartStage::kMm) {
      for (const std::string& line : restorer_note_lines(status.detail)) note(birth_of_[m], line);
    }
    if (stage == RestartStage::kThreadState) {
      for (const std::string& line : library_note_lines(status.detail)) note(birth_of_[m], line);
    }
    if (stage == RestartStage::kGo)
      processes_[static_cast<size_t>(birth_of_[m])].stops = status.detail == kStopsItself;
  }
  return {};
}

void JobSupervisor::reached(size_t m, RestartStage stage) {
  const auto i = static_cast<size_t>(stage);
  if (i >= kRestartStages || birth_of_[m] < 0) return;
  Process& p = processes_[static_cast<size_t>(birth_of_[m])];
  if (p.stage < stage) p.stage = stage;
  outcome_.stage_ns[i] = now_ns();
}

bool JobSupervisor::all_reached(RestartStage stage) const {
  for (int i : birth_of_) {
    if (i >= 0 && processes_[static_cast<size_t>(i)].stage < stage) return false;
  }
  return true;
}

// A process that stays must not end before all are let go. Afterwards programs run, and may end each other
// before the one that ends has said so.
Result<void> JobSupervisor::look_for_ends() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& p = processes_[i];
    if (p.gone || !has_ended(p.pidfd)) continue;
    p.gone = true;
    const Birth& b = job_.births.births[i];
    if (!b.stays()) {
      if (!meeting_.has_met(Point::kJoined)) return name_it(ended_while_made(), static_cast<int>(i));
      // Whoever ended it, nobody must wait for it: its parent looks at how it ended.
      if (b.kind == BirthKind::kZombie) meeting_.arrive(Point::kGone);
      continue;
    }
    CKPT_TRY(read_stages(static_cast<size_t>(b.member)));
    if (went_ || (late_went_ && p.late)) {
      reached(static_cast<size_t>(b.member), RestartStage::kGo);
      continue;
    }
    return name_it(
        make_error(ExitCode::kInternal, 0,
                   "it ended after the stage \"{}\": killed, out of memory (dmesg tells), or a fault in the "
                   "restart; the images are unharmed",
                   stage_name(p.stage)),
        static_cast<int>(i));
  }
  return {};
}

// The processes that the planter has borne are adopted once it has exited.
Result<void> JobSupervisor::watch_planter() {
  if (planter_gone_ || !has_ended(planter_)) return {};
  planter_gone_ = true;
  if (!meeting_.is_planted()) return ended_while_made();
  meeting_.arrive(Point::kGone);
  return {};
}

// All have their memory; from here on no time of the program's is lost.
void JobSupervisor::set_clocks() {
  if (!clocks_.valid()) return;
  const ProcessRecord& p = job_.root().process();
  const int64_t monotonic = p.monotonic_ns - now_ns(CLOCK_MONOTONIC) + outer_clocks_[0];
  const int64_t boottime = p.boottime_ns - now_ns(CLOCK_BOOTTIME) + outer_clocks_[1];
  const std::string text = offset_line(CLOCK_MONOTONIC, monotonic) + offset_line(CLOCK_BOOTTIME, boottime);
  if (write(clocks_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    note(-1,
         fmt::format("the clocks of the job cannot be set ({}): CLOCK_MONOTONIC jumps", errno_name(errno)));
  }
  clocks_.reset();
}

void JobSupervisor::let(ScopedFd& pipe, size_t bytes) {
  const std::string all(bytes, 'g');
  for (size_t at = 0; at < all.size();) {
    const ssize_t n = write(pipe.get(), all.data() + at, all.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // they are gone, as their pidfds tell
    at += static_cast<size_t>(n);
  }
}

// Waits until each process has closed its pipe, which it does before any of its threads goes on: a look at
// /proc after this sees the program's own descriptors only. (A child of an after-restart callback may hold
// the pipe longer.)
void JobSupervisor::wait_until_closed() {
  constexpr int kLongestMs = 1000;
  for (ScopedFd& fd : channels_.status) {
    if (!fd.valid()) continue;
    pollfd closed{fd.get(), POLLIN, 0};
    poll(&closed, 1, kLongestMs);
    fd.reset();
  }
  channels_.go.reset();
  channels_.together.reset();
  channels_.late_go.reset();
  await_stops();
}

void JobSupervisor::end_all() {
  meeting_.give_up();
  channels_.go.reset();
  channels_.late_go.reset();
  channels_.together.reset();
  kill(launched_.child, SIGKILL);  // an init takes its namespace with it
  kill_by(planter_);
  for (;;) {
    read_reports();
    for (const Process& p : processes_) kill_by(p.pidfd);
    int status;
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno != EINTR) return;  // nobody is left: all of them were below us
  }
}

Error JobSupervisor::name_it(const Error& error, int who) const {
  if (who < 0) return error;
  return make_error(error.code, error.sys_errno, "{}: {}", job_.name_of(who), error.message());
}

void JobSupervisor::note(const Report& report) {
  if (report.value == 0 || !say_at_once_) return note(report.who, report.text);
  if (said_.insert(report.text).second) say_at_once_(named(report.who, report.text));
}

void JobSupervisor::note(int who, const std::string& text) {
  if (said_.insert(text).second) outcome_.notes.push_back(named(who, text));  // of several the same: once
}

std::string JobSupervisor::named(int who, const std::string& text) const {
  return who < 0 ? text : fmt::format("{}: {}", job_.name_of(who), text);
}

Launched JobSupervisor::take_launched() {
  const auto root = static_cast<size_t>(job_.root_birth());
  launched_.pidfd = std::move(processes_[root].pidfd);
  if (!launched_.through_init) launched_.child = job_.manifest.root;
  return std::move(launched_);
}

}  // namespace ckpt
