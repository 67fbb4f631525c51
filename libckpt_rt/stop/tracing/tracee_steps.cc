#include "libckpt_rt/stop/tracing/tracee_steps.h"

#include <string_view>

#include "base/checks/named_points.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/stop/tracing/below_stack.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/stop/tracing/tracee_calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

namespace {

constexpr const char *kStarts =
                         "does not handle the checkpoint's signal: it starts, or runs without libckpt_rt.so",
                     *kHasEnded = "has ended, and its tracer was not told of that yet",
                     *kJustAttached = "has just been attached, and its tracer was not told of it yet";
constexpr const char* kNoRoom = "has no room left on its stack, which the checkpoint's signal needs";

constinit std::atomic<bool> looks_at_all{false};
constinit std::atomic<int> refused_tid{0};
constinit std::atomic<const char*> refused_because{nullptr};

void read_debug_registers(Tracee& t) {
  for (size_t i = 0; i < kDebugRegisters; ++i) {
    t.debug[i] = 0;
    // The system call writes the word, and does not return it as libc's function does. There are no 4 and 5.
    if (i < 4 || i >= kDebugStatus)
      trace::call(PTRACE_PEEKUSR, tid_of(t), debug_register(i), reinterpret_cast<uint64_t>(&t.debug[i]));
  }
}

// Which stop is it? why: of kUnknown.
Stop kind_of(int tid, siginfo_t& info, const char** why) {
  *why = kGroup;
  if (!read_info(tid, info)) return Stop::kUnknown;
  if (info.si_code >> 8 == PTRACE_EVENT_STOP && info.si_signo != SIGTRAP) return Stop::kUnknown;
  if (info.si_signo == SIGTRAP && info.si_code > 0xff) {
    *why = kEvent;
    return Stop::kUnknown;
  }
  if (!is_of_call(info)) return Stop::kSignal;
  *why = "is in the stop of a system call, of which this kernel does not tell which (Linux 5.3)";
  return stop_of_call(tid, info);
}

int process_of(int tid) { return static_cast<int>(ProcText(tid, 0, "/status").number("\nTgid:\t", 10)); }

bool is_own_signal(const siginfo_t& info, const Tracee& t) {
  return info.si_signo == signal_of(t) &&
         (info.si_code == SI_QUEUE || info.si_code == SI_USER || info.si_code == SI_TIMER ||
          (info.si_code == SI_TKILL && (info.si_pid == t.process || info.si_pid == sys::getpid())));
}

// What it could be given.
uint64_t pending_for(int tid) { return pending_of(tid) & ~trace::mask_of(tid); }

// "\nSigQ:\tQUEUED/LIMIT", of its user: is there no room for a few?
bool is_queue_full(const ProcText& status) {
  constexpr uint64_t kFew = 16;
  constexpr std::string_view kKey = "\nSigQ:\t";
  const size_t at = status.text().find(kKey), slash = status.text().find('/', at);
  if (at == std::string_view::npos || slash == std::string_view::npos) return false;
  return status.number(kKey, 10) + kFew > to_number(status.text().substr(slash + 1), 10);
}

// At the exit of a call that nothing but a signal of ours has cut short.
bool is_cut_short_by_us(const Tracee& t) {
  user_regs_struct now{};
  read_registers(tid_of(t), now);
  return is_cut_short(now) && pending_for(tid_of(t)) == trace::bit_of(signal_of(t));
}

// It was to make one step, which is a system call.
bool is_end_of_step(const Tracee& t, const siginfo_t& info) {
  const bool steps = t.resumed_by == PTRACE_SINGLESTEP || t.resumed_by == PTRACE_SYSEMU_SINGLESTEP;
  return steps && info.si_signo == SIGTRAP && info.si_code > 0;
}

// Is it the signal that this thread has sent itself (let_come)?
int takes_by(Tracee& t, const siginfo_t& info) {
  if (!t.asked || info.si_code != SI_QUEUE || info.si_pid != sys::getpid()) return 0;
  t.asked = false;
  return traced::kTakes;
}

// Of one in our handler: is it stopped at the handler's end? By the marker, or by a signal of that number
// that somebody sent, as others are blocked. A trap of the processor's is none.
bool is_at_end(const siginfo_t& info) {
  return traced::is_marker(info) ||
         (traced::may_be_marker(info.si_signo) && (info.si_signo != SIGTRAP || info.si_code <= 0));
}

// At the delivery of a signal of ours: into the handler. The word tells the thread what it is to do there.
void deliver(Tracee& t, siginfo_t& info) {
  const int tid = tid_of(t);
  take_event(tid);
  if (t.state == State::kDelivering)
    trace::set_mask(tid, t.mask);
  else
    t.mask = trace::mask_of(tid);
  if (!t.was_held) read_registers(tid, t.registers);
  // The handler may write to what a watchpoint watches.
  read_debug_registers(t);
  const bool watches = t.debug[kDebugControl] != 0;
  if (watches) trace::call(PTRACE_POKEUSR, tid, debug_register(kDebugControl), 0);
  const bool again =
      t.was_held || t.resumed_by != PTRACE_CONT || t.stop_came != 0 || t.interrupted || watches;
  const int untold = t.was_held && !t.reported && t.stop == Stop::kSignal ? t.info.si_signo : 0;
  info.si_errno = traced::word_of(untold, traced::kServed | (again ? traced::kAgain : 0) | takes_by(t, info));
  write_info(tid, info);
  t.stands = info.si_code == SI_TKILL;
  t.joined = t.joined || !t.stands;
  t.state = again ? State::kInHandler : State::kRunning;
  points::at("tracing.delivers");
  trace::resume(PTRACE_CONT, tid, info.si_signo);
  points::at("tracing.delivered");
}

}  // namespace

void refuse(const Tracee& t, const char* why) {
  int none = 0;
  if (!refused_tid.compare_exchange_strong(none, tid_of(t))) return;
  // release: who sees the reason sees whose it is.
  refused_because.store(why, std::memory_order_release);
}

Refusal refusal() {
  const char* const why = refused_because.load(std::memory_order_acquire);
  return {refused_tid.load(std::memory_order_relaxed), why};
}

void forget_refusal() {
  refused_tid.store(0, std::memory_order_relaxed);
  refused_because.store(nullptr, std::memory_order_relaxed);
}

void look_at_all_stops() { looks_at_all.store(true, std::memory_order_relaxed); }

const char* const kInVfork = "is in vfork(2), in the memory of its parent, which takes no signal meanwhile";

bool is_over_soon(const char* why) {
  return why == kStarts || why == kInVfork || why == kHasEnded || why == kJustAttached;
}

// Behind a restart nobody would tell of it, but of a child of its tracer's process.
void note_end(Tracee& t) {
  const int tid = tid_of(t);
  const ProcText status(tid, 0, "/status");
  t.state = State::kNone;
  if (status.text().empty() && sys::call(__NR_kill, tid, 0L) == -ESRCH) return;
  if (t.process != tid || static_cast<int>(status.number("\nPPid:\t", 10)) != t.owner) refuse(t, kHasEnded);
}

void hold(Tracee& t, bool reported) {
  const int tid = tid_of(t);
  t.state = State::kHeld;
  t.was_held = true;
  t.reported = reported;
  const char* why = nullptr;
  t.stop = kind_of(tid, t.info, &why);
  if (t.stop == Stop::kUnknown) return refuse(t, why);
  if (t.stop == Stop::kSignal && !reported && t.info.si_signo == SIGSTOP) {
    t.stop = Stop::kUnknown;
    return refuse(t, kJustAttached);
  }
  const ProcText status(tid, 0, "/status");
  if (t.stop == Stop::kSignal && !reported && t.info.si_signo >= kFirstQueued && is_queue_full(status)) {
    t.stop = Stop::kUnknown;
    return refuse(t,
                  "has a signal of which it was not told yet, and no more signals can be queued for its "
                  "user; raise its ulimit -i");
  }
  // It would never take the signal, for its tracer, which is to let it go on, stands.
  if ((status.number("\nSigCgt:\t", 16) & trace::bit_of(signal_of(t))) == 0) {
    t.stop = Stop::kUnknown;
    return refuse(t, kStarts);
  }
  // Of a call that has a signal mask for its time (sigsuspend, epoll_pwait), the kernel tells the one that is
  // put back behind it, and can be given no more than one.
  if (status.number("\nSigBlk:\t", 16) != trace::mask_of(tid)) {
    t.stop = Stop::kUnknown;
    return refuse(t, "is in a system call with a signal mask of its own (sigsuspend, ppoll, epoll_pwait)");
  }
  read_registers(tid, t.registers);
  if (!save_below(t)) {
    t.stop = Stop::kUnknown;
    return refuse(t, kNoRoom);
  }
  if (t.stop != Stop::kSignal && !is_behind_call(tid, t.registers.rip)) {
    t.stop = Stop::kUnknown;
    refuse(t, "is in the stop of a system call that it has not made by the instruction `syscall`");
  }
}

bool look(Tracee& t) {
  const int tid = tid_of(t);
  int code = untold_event(tid);
  if (is_end(code)) {
    note_end(t);  // the program's wait(2) takes it
    return true;
  }
  if (t.state == State::kHeld) return false;  // not told yet
  siginfo_t info{};
  const long asked = ask_info(tid, info);
  if (asked == -ESRCH) {
    if (code != 0 || sys::call(__NR_kill, tid, 0L) != -ESRCH) return false;
    t.state = State::kNone;
    return true;
  }
  // It is stopped. Where wait(2) has nothing to tell, the program was told: before the service, or in another
  // of its threads. It may have stopped in between.
  if (code == 0) code = untold_event(tid);
  const bool told = code == 0;
  const char* why = nullptr;
  const Stop stop = asked == 0 ? kind_of(tid, info, &why) : Stop::kUnknown;
  const bool by_signal = stop == Stop::kSignal;
  if (t.state == State::kDelivering) {
    // Those that waited are blocked; another one may have come.
    if (by_signal && info.si_signo == signal_of(t))
      deliver(t, info);
    else
      note_stop_meanwhile(t, asked, info, PTRACE_CONT);
  } else if (t.state == State::kInHandler) {
    // All are blocked, but for the marker at its end, and a fault of ours.
    if (by_signal && is_at_end(info))
      put_back(t, info);
    else if (!by_signal || info.si_signo == SIGSTOP)
      note_stop_meanwhile(t, asked, info, PTRACE_CONT);
    else
      return false;
  } else if (by_signal && is_own_signal(info, t)) {
    deliver(t, info);
  } else if (by_signal && traced::is_marker(info)) {
    // Of a signal of ours that wait(2) has passed on.
    t.was_held = t.in_call = false;
    put_back(t, info);
  } else if (by_signal && info.si_signo == SIGSTOP && !told && t.resumed_by != 0) {
    // No marker can be one, for nobody can block it: as if it were sent a little later.
    take_event(tid);
    t.stop_came = SIGSTOP;
    trace::resume(t.resumed_by, tid, 0);
  } else if (stop == Stop::kExit && !told && !t.in_call && is_cut_short_by_us(t)) {
    take_event(tid);
    t.in_call = true;
    trace::resume(PTRACE_SYSCALL, tid, 0);
  } else if (by_signal && !told && is_end_of_step(t, info) && is_cut_short_by_us(t)) {
    // The step is over when the call is.
    take_event(tid);
    trace::resume(t.resumed_by, tid, 0);
  } else {
    hold(t, told);
  }
  return true;
}

bool let_come(Tracee& t) {
  if (t.state != State::kHeld || t.stop == Stop::kUnknown) return false;
  const int tid = tid_of(t);
  const uint64_t bit = trace::bit_of(signal_of(t));
  t.mask = trace::mask_of(tid);
  const ProcText status(tid, 0, "/status");
  const bool own = (status.number("\nSigPnd:\t", 16) & bit) != 0;
  if (!own && (status.number("\nShdPnd:\t", 16) & bit) == 0) return false;
  if ((t.mask & bit) != 0) {
    refuse(t, "blocks the checkpoint's signal for a moment; ask again");
    t.stop = Stop::kUnknown;
    return false;
  }
  if (!own) {
    // What waits for the process any thread may take, and then this one would run on. So it gets a signal of
    // its own, and takes the other in its handler. One thread is enough.
    bool comes = false;
    for_each_own([&](const Tracee& other) {
      comes = comes || (other.process == t.process && (is_on_its_way(other) || other.asked));
    });
    if (comes) return false;
    siginfo_t asks{};
    asks.si_signo = signal_of(t);
    asks.si_code = SI_QUEUE;
    asks.si_pid = sys::getpid();
    t.asked = sys::call(__NR_rt_tgsigqueueinfo, t.process, tid, signal_of(t), &asks) == 0;
    if (t.asked) return true;
    t.stop = Stop::kUnknown;
    refuse(t, "cannot be sent a signal, as no more can be queued for its user; raise its ulimit -i");
    return false;
  }
  if (!save_below(t)) {
    t.stop = Stop::kUnknown;
    refuse(t, kNoRoom);
    return false;
  }
  if (!t.reported) take_event(tid);
  // Not more than must be: this thread may end before it has put the mask back.
  trace::set_mask(tid, t.mask | (pending_of(tid) & ~bit));
  points::at("tracing.comes");
  t.state = State::kDelivering;
  if (t.stop == Stop::kEntry) {
    // The call is not made now. What our handler's frame holds makes it, from its instruction on: this thread
    // may end before it has put the tracee back. rcx: not as behind a call that was cut short. One that the
    // kernel is not to make has its result.
    user_regs_struct skips = t.registers;
    if (!is_emulated(t)) {
      skips.rax = t.registers.orig_rax;
      skips.rip -= kInstruction;
    }
    skips.rcx = 0;
    skips.orig_rax = kNoCall;
    write_registers(tid, skips);
  }
  trace::resume(PTRACE_CONT, tid, 0);
  points::at("tracing.coming");
  return true;
}

bool pass_on(int tid, int signal) {
  if (tracees().empty()) return false;
  bool passed = false;
  // Another thread of this process traces it.
  const int self = static_cast<int>(sys::gettid()), owner = sys::getpid();
  for (const Tracee& t : tracees())
    if (tid_of(t) == tid && t.owner == owner && t.tracer != self && is_of_service(t, signal)) return true;
  if (signal != own_signal.number && !traced::may_be_marker(signal) &&
      !looks_at_all.load(std::memory_order_relaxed))
    return false;
  for_each_own([&](Tracee& t) {
    siginfo_t info{};
    if (tid_of(t) != tid || passed || !read_info(tid, info)) return;
    const int resumed_by = t.resumed_by == 0 ? PTRACE_CONT : t.resumed_by;
    if (t.process == 0) t.process = process_of(tid);
    if ((t.state == State::kInHandler && is_at_end(info)) || traced::is_marker(info)) {
      // The service has not waited for it any longer. Of a stop that wait(2) had not told it tells next.
      if (t.state != State::kInHandler) t.was_held = t.in_call = false;
      put_back(t, info);
      passed = true;
    } else if (is_own_signal(info, t)) {
      // The handler is not to be stepped through, nor its system calls shown.
      const bool again = resumed_by != PTRACE_CONT;
      t.mask = trace::mask_of(tid);
      t.was_held = t.in_call = false;
      read_debug_registers(t);
      info.si_errno = traced::word_of(0, (again ? traced::kAgain : 0) | takes_by(t, info));
      write_info(tid, info);
      passed = trace::resume(PTRACE_CONT, tid, signal) == 0;
      t.state = passed && again ? State::kInHandler : State::kNone;
    }
  });
  return passed;
}

}  // namespace ckpt::tracing
