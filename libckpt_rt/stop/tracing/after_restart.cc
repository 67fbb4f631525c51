// A tracing thread at a restart: attaches to its tracees again, which wait for it at the end of our handler.
#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/tracing/trace_calls.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/service_words.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/stop/tracing/tracee_calls.h"
#include "libckpt_rt/stop/tracing/tracee_steps.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

namespace {

constexpr int64_t kNapNs = 200'000;

// What it waits for. It need not look for us in /proc, for which it may have no descriptor left.
bool tell(const Tracee& t, int answer, int64_t until) {
  siginfo_t said{};
  said.si_signo = signal_of(t);
  said.si_code = SI_QUEUE;
  said.si_pid = sys::getpid();
  said.si_errno = answer;
  for (;;) {
    const long r = sys::call(__NR_rt_tgsigqueueinfo, t.process, tid_of(t), signal_of(t), &said);
    if (r != -EAGAIN || now_ns() > until) return r == 0;  // others' signals fill the queue
    nap(kNapNs);
  }
}

void say_without(const Tracee& t, int error, const char* what) {
  statistics::set_last_error(make_error(ExitCode::kUnavailable, error,
                                        "thread {} of process {}, which this one traced (ptrace) when the "
                                        "image was taken, {}{}{}{}: it goes on "
                                        "without a tracer",
                                        tid_of(t), t.process, what, error == 0 ? "" : " (",
                                        error == 0 ? "" : errno_name(error), error == 0 ? "" : ")"));
}

bool is_gone(int tid) { return sys::call(__NR_kill, tid, 0L) == -ESRCH; }

// It goes on without its tracer. One that was attached is let go: that takes a stop.
void give_up(Tracee& t, int error, const char* what, int64_t until) {
  constexpr int kTries = 1000;
  const int tid = tid_of(t);
  (void)tell(t, traced::kCannot, until);
  if (error == 0) {
    if (t.seized) trace::call(PTRACE_INTERRUPT, tid);
    for (int i = 0; trace::call(PTRACE_DETACH, tid) == -ESRCH && i < kTries && !is_gone(tid); ++i)
      nap(kNapNs);
  }
  say_without(t, error, what);
  forget(t);
}

// The kernel stops it by SIGSTOP for an attach: the first stop, as all others are blocked. Another thread of
// the program may take what wait(2) tells of it (is_of_service). Of a tracee wait(2) tells stops too where
// only ends are asked for: one that stops between the two calls below has not ended.
bool await_attach_stop(int tid, int64_t until) {
  while (now_ns() < until) {
    siginfo_t info{}, event{};
    if (trace::call(PTRACE_GETSIGINFO, tid, 0, reinterpret_cast<uint64_t>(&info)) == 0) return true;
    const long r = sys::call(__NR_waitid, P_PID, tid, &event, WEXITED | WNOWAIT | WNOHANG | __WALL, 0L);
    if (r == -ECHILD || (r == 0 && event.si_pid == tid && is_end(event.si_code))) return false;
    nap(kNapNs);
  }
  return false;
}

// It is held at the signal of a stop, which its tracer may give it then. The kernel stops a thread only if it
// has taken such a signal from its queue (JOBCTL_STOP_DEQUEUED), and PTRACE_SEIZE, unlike PTRACE_ATTACH,
// sends none.
bool is_to_take_stop(const Tracee& t) {
  const int signal = t.info.si_signo;
  return t.seized && t.was_held && t.reported && t.stop == Tracee::Stop::kSignal &&
         (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU);
}

void attach(Tracee& t, int64_t until) {
  const int tid = tid_of(t);
  t.asked = t.stopped_late = false;
  if (t.state != State::kNone && !t.stands && t.joined) say_without(t, 0, "did not stand then");
  if (t.state == State::kNone || !t.stands) return forget(t);
  t.attaches = true;
  t.state = State::kInHandler;
  const long r = t.seized ? trace::call(PTRACE_SEIZE, tid, 0, t.options) : trace::call(PTRACE_ATTACH, tid);
  if (r != 0) return give_up(t, static_cast<int>(r), "cannot be traced again", until);
  const bool stops = !t.seized || is_to_take_stop(t);
  if (stops) {
    if (t.seized) sys::call(__NR_tgkill, t.process, tid, SIGSTOP);
    if (!await_attach_stop(tid, until)) return give_up(t, 0, "did not stop for its tracer", until);
    take_event(tid);
    if (!t.seized) trace::call(PTRACE_SETOPTIONS, tid, 0, t.options);
  }
  // One that has stopped for an attach can be let go.
  if (!tell(t, traced::kAttached, until)) return give_up(t, 0, "cannot be sent a signal (ulimit -i)", until);
  t.attaches = false;
  if (stops) trace::resume(PTRACE_CONT, tid, 0);
}

// A tracee that is attached comes when all of its memory is there (a lazy restart).
bool any_waits_for_memory() {
  bool any = false;
  for_each_own([&](const Tracee& t) {
    any = any || (is_on_its_way(t) && ProcText(tid_of(t), 0, "/wchan").text() == "handle_userfault");
  });
  return any;
}

void attach_all(void*) {
  const int64_t until = now_ns() + traced::kPatienceNs;
  for_each_own([until](Tracee& t) { attach(t, until); });
  constexpr int64_t kLongestNs = 600'000'000'000;
  const int64_t longest = now_ns() + kLongestNs;
  while (any_on_its_way() && (now_ns() < until || (now_ns() < longest && any_waits_for_memory()))) {
    if (!step()) nap(kNapNs);
  }
  for_each_own([](Tracee& t) {
    t.stands = false;
    if (!is_on_its_way(t)) return;
    statistics::set_last_error(make_error(ExitCode::kTimeout, 0,
                                          "thread {} of process {}, which this one traces (ptrace), did not "
                                          "come back to where it was in time",
                                          tid_of(t), t.process));
  });
}

}  // namespace

void after_restart() {
  const int place = take_place();
  if (place < 0) return;
  on_stack_of(place, &attach_all, nullptr);
  leave_place(place);
}

}  // namespace ckpt::tracing
