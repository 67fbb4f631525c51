// How the coordinator (coordinator.h) asks members, waits for them and tells them what is next; and how it
// notices that a member is silent, or stopped. Its connections: coordinator_connections.cc.
#include "job/capture/coordinator/coordinator.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/memory/parents_memory.h"
#include "base/protocol/control_protocol.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// How long a member may be without the library before it counts as one that has none.
constexpr int64_t kStartNs = 5'000'000'000;
// How long it may be in the dynamic linker, with the library and without its handler: others may have the
// processors.
constexpr int64_t kInLinkerNs = 30'000'000'000;

// "12,busybox": pids and program names, or "all".
bool is_listed(std::string_view list, const ProcessLook& look) {
  char pid[16];
  *fmt::format_to_n(pid, sizeof(pid) - 1, "{}", look.pid).out = '\0';
  while (!list.empty()) {
    const size_t end = list.find(',');
    const std::string_view one = list.substr(0, end);
    if (one == "all" || one == std::string_view(pid) || one == std::string_view(look.name)) return true;
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
  }
  return false;
}

// A child in which the library does not know yet that it was forked drops the signal: so it is sent again.
constexpr int64_t kAskAgainNs = 50'000'000, kLookNs = 2'000'000;

}  // namespace

Error Coordinator::name(const Member& m, ExitCode code, const char* what) {
  return make_error(code, 0, "process {} ({}) of the job {}", m.listed.look.pid,
                    static_cast<const char*>(m.listed.look.name), what);
}

bool Coordinator::needs_nothing(const Member& m) {
  using State = Member::State;
  return m.state == State::kEnded || m.state == State::kLeftOut || m.state == State::kUnclaimed ||
         m.state == State::kTakenOver;
}

Result<void> Coordinator::add(const Listed& listed) {
  if (listed.look.pid == this_process.pid) {
    self_ = listed;
    return {};
  }
  Member m{};
  m.listed = listed;
  m.socket = -1;
  m.state = listed.look.ended() ? Member::State::kEnded : Member::State::kStarting;
  m.since_ns = now_ns();
  if (!members_.push_back(m))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  return {};
}

// A member that another one traces is asked when its tracer takes part, for then that one's library lets our
// signal through (libckpt_rt/stop/tracing/). One whose tracer cannot do that is refused. False: not yet.
Result<bool> Coordinator::may_be_asked(const Member& m) {
  if (is_begun_beside(m.listed.look.pid)) return true;  // our signal waits until its first instruction
  const int tracer = tracer_of(m.listed.look.pid);
  if (tracer == 0 || stopped_.is_helper(tracer)) return true;
  const int process = process_of(tracer);
  if (process == sys::getpid()) return true;
  const auto* by = std::find_if(members_.begin(), members_.end(),
                                [process](const Member& other) { return other.listed.look.pid == process; });
  // A debugger that is not of the job sees our signal, and passes it on.
  if (by == members_.end()) return true;
  if (needs_nothing(*by))
    return name(m, ExitCode::kUnavailable,
                "is traced by a process that is not saved (a debugger, strace), which would stop it at our "
                "signal; ask when it has let it go, or save that one alone, before or after, with --only");
  return by->reached != Step::kNone;
}

Result<void> Coordinator::check_tracees() {
  Result<void> able = tracing_.check();
  again = again || !able.ok();
  return able;
}

// Signals the member if the library in it can take the signal.
Result<void> Coordinator::ask(Member& m) {
  if (m.state != Member::State::kStarting && m.state != Member::State::kAsked) return {};
  const int pid = m.listed.look.pid;
  // Opened ahead of the look, so that what is looked at is what gets the signal: the number may come to
  // another process, which the signal would kill. A filter of system calls may forbid these calls.
  const ScopedFd pidfd(filtered_ ? -ENOSYS : static_cast<int>(sys::call(__NR_pidfd_open, pid, 0L)));
  ProcessLook look;
  if (!look_at(pid, look) || look.started != m.listed.look.started) {
    m.state = Member::State::kEnded;
    m.listed.look.state = 'X';
    return {};
  }
  m.listed.look = look;
  if (look.ended()) {
    m.state = Member::State::kEnded;
    return {};
  }
  // Whoever takes over a process without the library stops or traces it: what it is comes first.
  const bool undecided = in_rounds && !rounds_over_;
  if (!undecided) {
    auto may = may_be_asked(m);
    if (!may.ok()) return may.error();
    if (!*may) return {};
  }
  int signal = user_settings().signal;
  // This comes first: a child of vfork shows the memory, and so the library, of its parent.
  if (has_parents_memory(pid, look.ppid, [&] { return blocks_signal(pid, signal); })) {
    if (now_ns() - m.since_ns > kStartNs)
      return name(m, ExitCode::kUnsupported,
                  "shares its memory with its parent; take one process with --only");
    return {};
  }
  points::at("coordinator.looked");
  m.preloaded = look_for_library(pid, signal);
  switch (m.preloaded) {
    case Preloaded::kGone:
      return {};  // seen the next time
    case Preloaded::kBare:
      if (now_ns() - m.since_ns < kStartNs) return {};
      [[fallthrough]];
    case Preloaded::kStatic:
    case Preloaded::kClean:
    case Preloaded::kAsleep: {
      // The process may have executed another program between two of the questions.
      if (++m.looks < 3) return {};
      if (is_listed(options_.leave_out, look) || is_listed(user_settings().leave_out, look)) {
        m.state = Member::State::kLeftOut;
        return {};
      }
      if (undecided) {
        m.state = Member::State::kUnclaimed;
        return {};
      }
      const char* why =
          m.preloaded == Preloaded::kStatic   ? "is a static program, which the library cannot be in"
          : m.preloaded == Preloaded::kAsleep ? "was started with CKPT_DISABLE=1"
          : !may_look_at(pid) ? "may not be looked at: it is not dumpable (prctl, PR_SET_DUMPABLE)"
                              : "runs without libckpt_rt.so";
      return make_error(
          ExitCode::kUnsupported, 0,
          "process {} ({}) of the job {}: leave it out (--leave-out {}), or take one process with "
          "--only",
          pid, static_cast<const char*>(look.name), why, pid);
    }
    case Preloaded::kNotYet:
      m.looks = 0;
      // The process is stopped in the dynamic linker, and would stay there.
      if (look.state == 'T' && !undecided && !m.seized) {
        m.signal = signal;
        CKPT_TRY(seize(m));
      }
      if (now_ns() - m.since_ns > kInLinkerNs)
        return name(m, ExitCode::kTimeout, "has the library but does not handle its signal; see the log");
      return {};
    case Preloaded::kReady:
      m.looks = 0;
      if (undecided) {
        auto may = may_be_asked(m);
        if (!may.ok()) return may.error();
        if (!*may) return {};
      }
      break;
  }
  m.signal = signal;
  if (look.state == 'T' || (m.asked_ns != 0 && has_stopped_thread(pid))) CKPT_TRY(seize(m));
  points::at("coordinator.asks");
  siginfo_t info{};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = this_process.pid;
  info.si_uid = static_cast<uint32_t>(sys::call(__NR_getuid));
  info.si_value.sival_ptr = reinterpret_cast<void*>(cookie_);
  const long r = pidfd.valid() ? sys::call(__NR_pidfd_send_signal, pidfd.get(), signal, &info, 0L)
                               : sys::call(__NR_rt_sigqueueinfo, pid, signal, &info);
  m.asked_ns = now_ns();
  if (r == -ESRCH) return {};
  if (r == -EPERM)
    return name(m, ExitCode::kPermission,
                "belongs to another user; ask for the checkpoint as root, of a process of root's");
  if (r == -EAGAIN)
    return name(m, ExitCode::kUnavailable,
                "cannot be signalled: too many signals are queued; raise ulimit -i");
  if (r != 0) return name(m, ExitCode::kSystem, "cannot be signalled");
  m.state = Member::State::kAsked;
  return {};
}

Result<void> Coordinator::look_at_silent(int64_t now) {
  for (Member& m : members_) {
    if (m.state == Member::State::kStarting) CKPT_TRY(ask(m));
    if (m.state == Member::State::kConnected) CKPT_TRY(greet(m));
    if (m.state == Member::State::kAsked) {
      ProcessLook look;
      const bool there = look_at(m.listed.look.pid, look) && !look.ended();
      if (!there || now - m.asked_ns > kAskAgainNs) CKPT_TRY(ask(m));
    }
    const bool waits = m.state == Member::State::kAsked || m.state == Member::State::kConnected;
    if (waits && now - m.since_ns > kPatienceNs)
      return name(m, ExitCode::kTimeout, "did not answer within 30 s");
  }
  return {};
}

Result<void> Coordinator::seize(Member& m) {
  const long r = stopped_.seize(m.listed.look.pid, m.signal);
  m.seized = true;
  if (r == 0 || r == -ESRCH) return {};
  again = again || r == -ECHILD;
  return name(m, ExitCode::kUnavailable,
              r == -EPERM
                  ? "is stopped, and may not be traced (kernel.yama.ptrace_scope, or seccomp): continue it "
                    "(kill -CONT), or ask as root"
                  : "is stopped, and does not stand for a tracer; continue it (kill -CONT), and ask again");
}

// A member that is stopped after it was asked (a terminal's Ctrl-Z) goes on with its part all the same.
Result<void> Coordinator::look_for_stopped(Step step) {
  for (Member& m : members_) {
    ProcessLook look;
    if (m.state != Member::State::kWithUs || m.reached >= step) continue;
    if (!look_at(m.listed.look.pid, look)) continue;
    // A look at its threads is to take a twentieth of the time.
    constexpr int64_t kEachThreadNs = 100'000;
    const int64_t now = now_ns();
    const bool looks = now - m.threads_looked_ns > look.threads * kEachThreadNs;
    if (looks) m.threads_looked_ns = now;
    if (look.state == 'T' || (looks && has_stopped_thread(look.pid))) CKPT_TRY(seize(m));
  }
  return {};
}

// Nobody hears of a checkpoint whose asker has gone (a ckpt now that was killed): before the stop, where a
// member may let all wait for long, it is given up.
Result<void> Coordinator::look_at_asker() {
  if (options_.asker < 0) return {};
  pollfd asker{options_.asker, 0, 0};
  constexpr timespec kAtOnce{};
  if (sys::call(__NR_ppoll, &asker, 1L, &kAtOnce, nullptr, 8L) <= 0 || (asker.revents & POLLHUP) == 0)
    return {};
  return make_error(
      ExitCode::kUnavailable, 0,
      "whoever asked for the checkpoint is gone, and not all processes of the job were ready; it "
      "was given up");
}

// A member that is lost before the stop is asked anew, once or often: a shell executes one program after the
// other. When nobody else is waited for any more it has kPatienceNs.
class Coordinator::LostAgain {
 public:
  // The first member that lacks `step`, if all that do have been lost and the time is over.
  const Member* look(const ArenaVector<Member>& members, Step step) {
    const Member* first = nullptr;
    for (const Member& m : members) {
      if (needs_nothing(m) || m.reached >= step) continue;
      if (!m.was_lost) first = nullptr;
      if (!m.was_lost) break;
      if (first == nullptr) first = &m;
    }
    if (first == nullptr)
      since_ns_ = 0;
    else if (since_ns_ == 0)
      since_ns_ = now_ns();
    return first != nullptr && now_ns() - since_ns_ > kPatienceNs ? first : nullptr;
  }

 private:
  int64_t since_ns_ = 0;
};

// Waits until every living member has come to `step`. deadline_ns: CLOCK_MONOTONIC, 0 never.
Result<void> Coordinator::await(Step step, int64_t deadline_ns) {
  auto all = have_come(step, deadline_ns, Late::kIsLost);
  if (!all.ok()) return all.error();
  if (*all) return {};
  for (const Member& m : members_) {
    if (needs_nothing(m) || m.reached >= step) continue;
    return name(m, ExitCode::kTimeout,
                step <= Step::kHeld
                    ? "was not ready in time; the checkpoint was given up"
                    : "did not stand in time (CKPT_STOP_TIMEOUT); the checkpoint was given up");
  }
  return {};
}

// False: the deadline came first.
Result<bool> Coordinator::have_come(Step step, int64_t deadline_ns, Late late) {
  auto* polls = static_cast<pollfd*>(arena_.allocate((members_.size() + 1) * sizeof(pollfd)));
  auto* who = static_cast<uint32_t*>(arena_.allocate((members_.size() + 1) * sizeof(uint32_t)));
  if (polls == nullptr || who == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to lead a job");
  LostAgain lost_again;
  for (;;) {
    size_t count = 0;
    bool all = true, silent = false;
    for (uint32_t i = 0; i < members_.size(); ++i) {
      const Member& m = members_[i];
      if (needs_nothing(m)) continue;
      if (m.reached < step) all = false;
      if (m.state == Member::State::kWithUs || m.state == Member::State::kConnected) {
        who[count] = i;
        polls[count++] = {m.socket, POLLIN, 0};
      }
      silent = silent || m.state != Member::State::kWithUs;
    }
    if (all) return true;
    release_if_late();
    if (step <= Step::kHeld) {
      CKPT_TRY(check_tracees());
      CKPT_TRY(look_at_asker());
      if (const Member* m = lost_again.look(members_, step); m != nullptr)
        return name(*m, ExitCode::kTimeout, "left the checkpoint again and again, for 30 s");
    }
    // From the stop on nobody new can come: who connects then is a stranger, and may take the time of all.
    polls[count] = {told_ < Step::kStop ? listener_.get() : -1, POLLIN, 0};
    const int64_t now = now_ns();
    // Until all go on others wait for the last: in the stop, and before it for a member that is being
    // stopped.
    int64_t wait = silent ? kLookNs : told_ < Step::kGo ? kAskAgainNs : 1'000'000'000;
    if (deadline_ns != 0 && now >= deadline_ns) return false;
    if (deadline_ns != 0) wait = std::min(wait, deadline_ns - now);
    const timespec left{wait / 1'000'000'000, wait % 1'000'000'000};
    const long ready = sys::call(__NR_ppoll, polls, count + 1, &left, nullptr, 8L);
    if (ready > 0) {
      for (size_t i = 0; i < count; ++i) {
        if (polls[i].revents == 0) continue;
        Member& m = members_[who[i]];
        CKPT_TRY(m.state == Member::State::kConnected
                     ? greet(m)
                     : take_message(m, late == Late::kIsLost ? deadline_ns : 0));
      }
      if (polls[count].revents != 0) CKPT_TRY(accept_members());
    }
    if (silent) CKPT_TRY(look_at_silent(now_ns()));
    if (ready == 0 && !silent) CKPT_TRY(look_for_stopped(step));
  }
}

Result<void> Coordinator::tell_all(Step step) {
  told_ = step;
  for (Member& m : members_) {
    if (m.state != Member::State::kWithUs) continue;
    const bool told = step == Step::kSample
                          ? send_message(m.socket, step, &m.stop_signal, sizeof(m.stop_signal))
                      : step == Step::kGo ? send_message(m.socket, step, &going, sizeof(going))
                                          : send_message(m.socket, step);
    if (!told) CKPT_TRY(lost(m));
  }
  return {};
}

// Tells all members, also when one has gone: a member that does not hear of it stands until its own deadline.
void Coordinator::abort_all() {
  told_ = Step::kAbort;
  for (Member& m : members_) {
    if (m.state == Member::State::kWithUs) (void)send_message(m.socket, Step::kAbort);
  }
}

}  // namespace ckpt::job
