#include "restart/job/planter.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/checks/named_points.h"
#include "restart/descriptors/builder.h"
#include "restart/job/shared_things.h"
#include "restart/reports/packet.h"
#include "restart/restorer/clone.h"
#include "restart/tree/launch.h"
#include "restart/tree/namespaces.h"
#include "restart/tree/process.h"

namespace ckpt {
namespace {

constexpr int kExitSystem = static_cast<int>(ExitCode::kSystem);

class Tree {
 public:
  Tree(const PlanterSpec& spec, ReportChannel& report, bool in_new_user)
      : spec_(spec), job_(*spec.job), report_(report), in_new_user_(in_new_user) {}

  [[noreturn]] void plant() {
    block_signals();
    prctl(PR_SET_NAME, "ckpt-planter");
    // While the planter had them open, no process of the tree would learn that ckpt-restart is gone.
    for (auto& feeder : *spec_.feeders) {
      if (feeder != nullptr) feeder->give_up_our_ends();
    }
    if (auto r = working_.open_above(job_.highest_descriptor); !r.ok()) fail(r.error());
    auto things = make_shared_things(job_, working_, report_);
    if (!things.ok()) fail(things.error());
    things_ = std::move(*things);
    if (auto r = prepare_clocks(); !r.ok()) fail(r.error());
    for (int birth : job_.births.first) bear(birth);
    meet(Point::kBorn);
    // All processes of the job exist. None goes on beyond the next point before the planter comes to it.
    points::at("restart.born");
    if (things_.late != nullptr) {
      if (auto r = things_.late->send(things_.files); !r.ok()) fail(r.error());
    }
    points::at("restart.sent");
    meet(Point::kLed);
    meet(Point::kJoined);
    points::at("restart.reaping");
    reap_helpers(job_.births.first);
    spec_.meeting->finish_planting();
    _exit(0);
  }

 private:
  const Birth& birth(int i) const { return job_.births.births[static_cast<size_t>(i)]; }

  static void block_signals() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    signal(SIGCHLD, SIG_DFL);  // zombies are to stay
  }

  [[noreturn]] void fail(const Error& error) {
    report_.error(error);
    _exit(kExitSystem);
  }

  void meet(Point point) {
    spec_.meeting->arrive(point);
    if (!spec_.meeting->wait(point, spec_.go_fd)) _exit(kExitSystem);
  }

  // A time namespace for all: its clocks are set when all have their memory. The process that prepares it
  // must live until then, and may have no children, which would be in it too early.
  Result<void> prepare_clocks() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
      return make_error(ExitCode::kSystem, errno, "no socket pair ({})", errno_name(errno));
    ScopedFd ours(pair[0]), theirs(pair[1]);
    CloneResult holder = clone_process(0, job_.births.clock_pid);
    if (holder.pid == 0) hold_clocks(theirs.get());
    if (sys::failed(holder.pid)) return clone_error(holder.pid, job_.births.clock_pid);
    ScopedFd(holder.pidfd).reset();
    theirs.reset();
    int64_t outer[2] = {};
    int fds[2] = {-1, -1};
    if (receive_packet(ours.get(), std::as_writable_bytes(std::span(outer)), fds, false) !=
            Received::kMessage ||
        fds[0] < 0 || fds[1] < 0) {
      report_.note(
          "CLOCK_MONOTONIC jumps: no time namespace is allowed here (CAP_SYS_ADMIN, or a user namespace)");
      return {};
    }
    ScopedFd offsets(fds[0]);
    auto entry = working_.park(ScopedFd(fds[1]), "the time namespace");
    if (!entry.ok()) return entry.error();
    time_ns_ = *entry;
    Report clocks;
    clocks.kind = ReportKind::kClocks;
    std::memcpy(clocks.text, outer, sizeof(outer));
    const int fd = offsets.get();
    (void)send_packet(report_.fd(), std::as_bytes(std::span(&clocks, 1)), std::span(&fd, 1));
    return {};
  }

  [[noreturn]] void hold_clocks(int socket) {
    prctl(PR_SET_NAME, "ckpt-clocks");
    if (things_.late != nullptr) things_.late->leave_to_planter();
    TimeNamespace time = prepare_time_namespace();
    const int64_t outer[2] = {time.outer_monotonic_ns, time.outer_boottime_ns};
    const int fds[2] = {time.offsets.get(), time.entry.get()};
    (void)send_packet(socket, std::as_bytes(std::span(outer)), std::span(fds, time.prepared() ? 2 : 0));
    char byte;
    while (time.prepared() && read(spec_.together_fd, &byte, 1) < 0 && errno == EINTR) {
    }
    _exit(0);
  }

  // The signal that its parent gets at its end (clone(2)). A process whose parent has ended, such as an
  // adopted one, sends SIGCHLD from then on.
  int exit_signal(int i) const {
    const Birth& b = birth(i);
    return b.member >= 0 && b.parent != kPlanter && b.adopter == kNobody ? job_.member(b).exit_signal
                                                                         : SIGCHLD;
  }

  // Of children of i that have ended already: the program has had these signals.
  sigset_t end_signals(int i) const {
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t z = 0; z < job_.births.births.size(); ++z) {
      const int signal_number = exit_signal(static_cast<int>(z));
      if (job_.births.births[z].kind == BirthKind::kZombie && job_.births.births[z].parent == i &&
          signal_number > 0 && signal_number != SIGCHLD)
        sigaddset(&signals, signal_number);
    }
    return signals;
  }

  void bear(int i) {
    const pid_t parent = getpid();
    CloneResult child = clone_process(0, birth(i).pid, exit_signal(i));
    if (child.pid == 0) {
      report_.speak_as(i);
      // A process that is adopted later must outlive the process that forks it: so no death signal.
      const Birth& b = birth(i);
      if (b.parent != kPlanter && b.adopter == kNobody) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(kExitSystem);
      }
      live(i);
    }
    if (sys::failed(child.pid)) fail(clone_error(child.pid, birth(i).pid));
    report_.send(ReportKind::kBorn, i, child.pidfd);
    ScopedFd(child.pidfd).reset();
  }

  [[noreturn]] void live(int i) {
    if (things_.late != nullptr) things_.late->leave_to_planter();
    const Birth& b = birth(i);
    const std::string name(b.member >= 0 ? job_.member(b).name : std::string("ckpt-helper"));
    prctl(PR_SET_NAME, name.c_str());
    if (b.adopts) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    const sigset_t signals = end_signals(i);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    for (int child : b.before) bear(child);
    if (b.leads_session() && setsid() < 0) fail(no_place(b, "session", b.sid));
    if (b.leads_session()) take_terminal(b);
    for (int child : b.after) bear(child);
    meet(Point::kBorn);
    if (b.leads_group() && !b.leads_session() && setpgid(0, 0) != 0)
      fail(no_place(b, "process group", b.pgid));
    meet(Point::kLed);
    if (b.pgid != 0 && !b.leads_group() && getpgrp() != b.pgid && setpgid(0, b.pgid) != 0)
      fail(no_place(b, "process group", b.pgid));
    meet(Point::kJoined);
    points::at(b.kind == BirthKind::kZombie   ? "restart.zombie"
               : b.kind == BirthKind::kHelper ? "restart.helper"
                                              : "restart.joined");
    reap_helpers(b.before);
    reap_helpers(b.after);
    settle_terminal(b);
    if (b.kind == BirthKind::kHelper) _exit(0);
    if (b.kind == BirthKind::kZombie) {
      take_user_of_parent(i);
      if (WCOREDUMP(job_.member(b).exit_status))
        report_.note("it had ended with a core dump: its parent is told of the signal alone");
      end_as(job_.member(b).exit_status);
    }
    meet(Point::kGone);
    if (b.adopts) prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    know_parent(i);
    become_member(i);
  }

  // A terminal whose master is in the job, that controls this member's session; -1: none.
  int terminal_of(const Birth& b) const {
    if (b.member < 0) return -1;
    const auto number = number_of_terminal(job_.member(b).terminal);
    const auto terminal = number ? things_.terminals.find(*number) : things_.terminals.end();
    return terminal != things_.terminals.end() ? terminal->second : -1;
  }

  // A process has the controlling terminal that its parent had when it was born: the leader takes it before
  // there are others in its session.
  void take_terminal(const Birth& b) {
    const int terminal = terminal_of(b);
    if (terminal >= 0 && ioctl(terminal, TIOCSCTTY, 0) != 0) fail(no_place(b, "session's terminal", b.sid));
  }

  // All groups are there: sets the foreground group. A member that had given up its session's terminal does
  // so again.
  void settle_terminal(const Birth& b) {
    if (b.member < 0) return;
    const ManifestMember& m = job_.member(b);
    if (m.terminal == 0) {
      for (const auto& [number, terminal] : things_.terminals) ioctl(terminal, TIOCNOTTY);
      return;
    }
    const int terminal = terminal_of(b);
    if (terminal < 0 || !b.leads_session() || m.foreground_group <= 0) return;
    // EPERM: a process outside of the job has that number now.
    if (tcsetpgrp(terminal, m.foreground_group) != 0 && errno != ESRCH &&
        (errno != EPERM || is_group_of_job(m.foreground_group)))
      fail(no_place(b, "terminal, whose foreground group is", m.foreground_group));
  }

  bool is_group_of_job(int group) const {
    return std::ranges::any_of(job_.births.births, [&](const Birth& b) { return b.pgid == group; });
  }

  Error no_place(const Birth& b, const char* what, int id) const {
    return make_error(ExitCode::kUnavailable, errno, "process {} cannot be in its {} {} ({})", b.pid, what,
                      id, errno_name(errno));
  }

  void reap_helpers(const std::vector<int>& children) {
    for (int i : children) {
      if (birth(i).kind != BirthKind::kHelper) continue;
      int status = 0;
      while (waitpid(birth(i).pid, &status, 0) < 0 && errno == EINTR) {
      }
      // The first word counts, which is the helper's, if it had one.
      if (status != 0) fail(ended_while_made());
    }
  }

  // /proc hides the status of a zombie with more rights than the reader, also from the next checkpoint.
  void take_user_of_parent(int i) const {
    const int parent = job_.births.final_parent(i);
    if (parent >= 0 && birth(parent).member >= 0 && !in_new_user_) {
      const RestartPlan* plan = job_.plans[static_cast<size_t>(birth(parent).member)].get();
      const ProcessRecord* p = plan != nullptr ? &plan->process() : nullptr;
      if (p != nullptr) {
        sys::call(__NR_setresgid, p->gid[0], p->gid[1], p->gid[2]);
        sys::call(__NR_setresuid, p->uid[0], p->uid[1], p->uid[2]);
      }
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2] = {};
    sys::call(__NR_capset, &header, none);
  }

  [[noreturn]] static void end_as(int wait_status) {
    if (WIFEXITED(wait_status)) _exit(WEXITSTATUS(wait_status));
    const int signal_number = WTERMSIG(wait_status);
    // 1, not 0: with 0 the kernel still starts a program that core dumps are piped to. (PR_SET_DUMPABLE would
    // hide the zombie's status.)
    const rlimit no_core{1, 1};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(signal_number, SIG_DFL);
    kill(getpid(), signal_number);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    _exit(kExitSystem);
  }

  // From here on it ends with its parent, until the restorer is through; and its children that have ended are
  // there to be waited for.
  void know_parent(int i) {
    const int parent = job_.births.final_parent(i);
    int expected = parent != kPlanter ? birth(parent).pid : spec_.new_pid_namespace ? 1 : spec_.restarter_pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != expected) {
      fail(make_error(ExitCode::kInternal, 0, "process {} is the child of {}, not of {}", birth(i).pid,
                      getppid(), expected));
    }
    for (size_t z = 0; z < job_.births.births.size(); ++z) {
      const Birth& b = job_.births.births[z];
      if (b.kind != BirthKind::kZombie || job_.births.final_parent(static_cast<int>(z)) != i) continue;
      siginfo_t ended{};
      while (waitid(P_PID, static_cast<id_t>(b.pid), &ended, WEXITED | WNOWAIT | __WALL) != 0 &&
             errno == EINTR) {
      }
      if (ended.si_pid != b.pid)
        fail(make_error(ExitCode::kInternal, errno, "no status of the ended process {} ({})", b.pid,
                        errno_name(errno)));
      const int expected_status = job_.member(b).exit_status;
      const bool exited = ended.si_code == CLD_EXITED;
      if (exited != WIFEXITED(expected_status) ||
          ended.si_status != (exited ? WEXITSTATUS(expected_status) : WTERMSIG(expected_status)))
        fail(ended_while_made());  // by another than itself
    }
    const sigset_t signals = end_signals(i);
    const timespec now{};
    while (sigtimedwait(&signals, nullptr, &now) > 0) {
    }
  }

  uint32_t stopped_children(int i) const {
    uint32_t count = 0;
    for (size_t c = 0; c < job_.births.births.size(); ++c) {
      const Birth& b = job_.births.births[c];
      count += b.member >= 0 && how_stopped(job_.manifest, job_.member(b)) == RestartStopped::kEarly &&
               job_.births.final_parent(static_cast<int>(c)) == i;
    }
    return count;
  }

  // That it gets when its parent ends. The kernel sends it when the thread ends whose child it is: with that
  // of ckpt-restart, or of a thread that had ended already, it would come at once.
  int death_signal(int i) {
    const int wanted = job_.member(birth(i)).pdeath_signal;
    const int parent = job_.births.final_parent(i);
    if (wanted == 0) return 0;
    const char* why = nullptr;
    if (parent == kPlanter || birth(parent).member < 0) {
      why = "its parent is none of the job";
    } else {
      const auto& plan = job_.plans[static_cast<size_t>(birth(parent).member)];
      if ((plan->image->meta().threads.front().record.flags & kThreadLeaderExited) != 0)
        why = "the first thread of its parent has ended";
    }
    if (why == nullptr) return wanted;
    report_.note(fmt::format(
        "it is to get signal {} when its parent ends (PR_SET_PDEATHSIG), and gets none: {}", wanted, why));
    return 0;
  }

  [[noreturn]] void become_member(int i) {
    const auto m = static_cast<size_t>(birth(i).member);
    const RestartPlan& plan = *job_.plans[m];
    const Feeder* feeder = (*spec_.feeders)[m].get();
    JobSpec job;
    job.highest_descriptor = job_.highest_descriptor;
    job.files = things_.files[m];
    job.objects = things_.objects;
    job.views = things_.views;
    job.mapped_objects = things_.mapped_objects;
    job.lone_pipes = things_.lone_pipes;
    for (const ManifestMember& member : job_.manifest.members) job.processes.insert(member.pid);
    job.together_fd = spec_.together_fd;
    job.time_ns_fd = time_ns_;
    job.stopped = how_stopped(job_.manifest, job_.manifest.members[m]);
    job.go_fd = job.stopped == RestartStopped::kLate ? spec_.late_go_fd : spec_.go_fd;
    job.opened = [this] { spec_.meeting->arrive(Point::kOpened); };
    job.all_opened = [this](int alive_fd) { return spec_.meeting->wait(Point::kOpened, alive_fd); };
    job.stopped_children = stopped_children(i);
    job.parent_death_signal = death_signal(i);
    ProcessSpec process = process_of(plan);
    process.status_fd = spec_.fds[m].status;
    if (feeder != nullptr) process.feed = feeder->process_fds();
    process.place = JobPlace::kRestarters;  // it has its session and group
    process.job = &job;
    become_program(process, report_, in_new_user_);
  }

  const PlanterSpec& spec_;
  const JobPlan& job_;
  ReportChannel& report_;
  bool in_new_user_;
  WorkingFds working_;
  SharedThings things_;
  int time_ns_ = -1;
};

}  // namespace

void run_planter(const PlanterSpec& spec, ReportChannel& report, bool in_new_user) {
  Tree(spec, report, in_new_user).plant();
}

}  // namespace ckpt
