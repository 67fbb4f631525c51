// The end of one tracee's way through our handler: it is put back into the stop, or let go on, as its tracer
// had it.
#include <errno.h>
#include <time.h>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "libckpt_rt/stop/tracing/below_stack.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/stop/tracing/tracee_calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

namespace {

// A signal that it had, of somebody else's.
void send_again(const Tracee& t, const siginfo_t& info) {
  const int tid = tid_of(t);
  if (info.si_code < 0 && info.si_code != SI_TKILL &&
      sys::call(__NR_rt_tgsigqueueinfo, t.process, tid, info.si_signo, &info) == 0)
    return;
  sys::call(__NR_tgkill, t.process, tid, info.si_signo);
}

// Is it the thread's own? Where a filter of the program's forbids the call that carries a word, it has none.
bool is_own_marker(const Tracee& t, const siginfo_t& marker) {
  return traced::is_marker(marker) || (marker.si_code == SI_TKILL && marker.si_pid == t.process);
}

// To the next stop that `wanted` takes; others are seen to. wait(2) has not told of it. False: it ended, or
// does not come there.
template <typename Wanted>
bool go_to(Tracee& t, long request, Wanted wanted) {
  constexpr int64_t kPatienceNs = 30'000'000'000;
  constexpr timespec kNap{0, 50'000};
  const int tid = tid_of(t);
  trace::resume(request, tid, 0);
  points::at("tracing.goes");
  for (const int64_t until = now_ns() + kPatienceNs; now_ns() < until;) {
    if (is_end(untold_event(tid))) return false;
    // Not by wait(2): another thread of the program may have taken what that tells (pass_on).
    siginfo_t info{};
    const long asked = ask_info(tid, info);
    if (asked == -ESRCH) {
      sys::call(__NR_nanosleep, &kNap, nullptr);
      continue;
    }
    if (asked == 0 && wanted(info)) return true;
    note_stop_meanwhile(t, asked, info, request);
    if (t.state == State::kNone) return false;
  }
  return false;
}

// To the next stop of a system call.
bool go_to_call(Tracee& t, long request = PTRACE_SYSCALL) {
  return go_to(t, request, [](const siginfo_t& info) { return is_of_call(info); });
}

// A stop of a system call of which wait(2) has not told yet: at its tracer's end the kernel sends the tracee
// SIGTRAP, which ends it, unless such stops are marked. Options that are not known stay as they are.
void mark_calls(const Tracee& t, bool marked) {
  if (t.unknown != Tracee::Unknown::kNothing || (t.options & PTRACE_O_TRACESYSGOOD) != 0) return;
  const uint32_t options = marked ? t.options | PTRACE_O_TRACESYSGOOD : t.options;
  trace::call(PTRACE_SETOPTIONS, tid_of(t), 0, options);
}

// From its marker, in our handler: behind rt_sigreturn(2), ahead of the program's next instruction and of any
// signal. Registers and signal mask are the program's, whether its tracer lives or not.
bool go_to_return(Tracee& t) {
  const int tid = tid_of(t);
  while (go_to_call(t)) {
    user_regs_struct now{};
    read_registers(tid, now);
    const bool returns = now.orig_rax == __NR_rt_sigreturn;  // its exit has none
    take_event(tid);
    // Of that exit wait(2) may have to tell, as its tracer would have it.
    if (returns && (t.in_call || (t.was_held && t.stop == Stop::kExit && !t.reported))) mark_calls(t, false);
    if (returns) return go_to_call(t);
  }
  return false;
}

// What waits for it is not to come before it is where it was. Not more is blocked than must be: this thread
// may end before it has put the mask back.
void block_pending(const Tracee& t, uint64_t mask, uint64_t but = 0) {
  trace::set_mask(tid_of(t), (mask | pending_of(tid_of(t))) & ~but);
}

// To the signal that it was sent. Of two of one number the kernel keeps the older one, but for real-time
// signals, of which ours comes behind.
bool go_to_signal(Tracee& t, int signal, uint64_t mask) {
  const int tid = tid_of(t);
  take_event(tid);
  for (;;) {
    siginfo_t came{};
    block_pending(t, mask, trace::bit_of(signal));
    const bool there = go_to(t, PTRACE_CONT, [&](const siginfo_t& info) {
      came = info;
      return info.si_signo == signal && info.si_code <= 0;
    });
    if (!there) return false;
    if (came.si_code == SI_TKILL && came.si_pid == sys::getpid()) return true;
    send_again(t, came);
    if (signal < kFirstQueued) return true;
    take_event(tid);
  }
}

// The registers that rt_sigreturn has set are the program's. But the kernel has made a system call that the
// stop's signal cut short ready to be made again, and forgotten its number. As they were they are better: the
// kernel makes the call again when the tracee goes on. Not so a call that goes on by restart_syscall(2),
// which a handler ends, or of which our handler has taken what it had done: that one is at its beginning,
// with the time or the bytes that are left (interrupted_call.h).
void put_registers_back(const Tracee& t) {
  if (t.registers.orig_rax == kNoCall || t.registers.rax == kRestartsByBlock) return;
  if (t.registers.rax < kRestartsFirst || t.registers.rax > kRestartsLast) {
    user_regs_struct now{};
    read_registers(tid_of(t), now);
    if (now.rip != t.registers.rip) return;
  }
  write_registers(tid_of(t), t.registers);
}

// The stop of a signal takes one. If wait(2) has not told of that stop, it is the same one, which the tracee
// gets also if its tracer ends now. Else it is the marker's, which is dropped then, as the stop's would be.
int signal_of_stop(const Tracee& t) { return t.reported ? t.marker : t.info.si_signo; }

bool put_back_at_signal(Tracee& t, uint64_t mask) {
  if (t.reported) sys::call(__NR_tgkill, t.process, tid_of(t), signal_of_stop(t));
  if (!go_to_signal(t, signal_of_stop(t), mask)) return false;
  put_registers_back(t);
  write_info(tid_of(t), t.info);
  if (t.reported) take_event(tid_of(t));
  return true;
}

// Our handler has made the rest of a call ready that a signal of ours cut short, from its beginning on: what
// is left of a write, for example (interrupted_call.h). There it loads all registers that it needs.
bool goes_on(const Tracee& t) {
  user_regs_struct now{};
  read_registers(tid_of(t), now);
  return now.rip != t.registers.rip && !is_cut_short(t.registers);
}

// To the entry of the rest of it, of which its tracer is told nothing: it knows of the call's own.
bool put_back_in_rest(Tracee& t, uint64_t mask) {
  t.was_held = false;
  take_event(tid_of(t));
  mark_calls(t, true);
  block_pending(t, mask);
  if (!go_to_call(t)) return false;
  take_event(tid_of(t));
  return true;
}

// At the exit of a call it is already: that of rt_sigreturn.
void put_back_at_exit(Tracee& t, bool told) {
  const int tid = tid_of(t);
  if (told && goes_on(t)) {
    user_regs_struct now{};
    read_registers(tid, now);
    t.registers.rip = now.rip;
  }
  write_registers(tid, t.registers);
  // The kernel looks at its own errors only on the way to a signal.
  if (is_cut_short(t.registers)) sys::call(__NR_tgkill, t.process, tid, signal_of(t));
  if (!told) return;
  take_event(tid);
  write_info(tid, t.info);
}

// The instruction is executed once more. By PTRACE_SYSEMU where it was so: the kernel does not make the call
// when it goes on. The tracer may have changed the registers at that stop, and taken the number away.
bool put_back_at_entry(Tracee& t, uint64_t mask) {
  const int tid = tid_of(t);
  user_regs_struct begins = t.registers;
  begins.rip -= kInstruction;
  // Of one that is emulated, no call is made if its tracer ends now.
  begins.rax = is_emulated(t) ? kNoCall : t.registers.orig_rax;
  begins.orig_rax = kNoCall;
  take_event(tid);
  write_registers(tid, begins);
  block_pending(t, mask);
  if (!t.reported) mark_calls(t, false);
  if (!go_to_call(t, emulates(t.resumed_by) ? PTRACE_SYSEMU : PTRACE_SYSCALL)) return false;
  write_registers(tid, t.registers);
  if (!t.reported) return true;
  take_event(tid);
  write_info(tid, t.info);
  return true;
}

// It was let go on by PTRACE_SYSCALL, and its tracer knows that it is in a call. Our handler has come back to
// that call's beginning; or to its end, where the kernel makes it not again.
bool put_back_in_call(Tracee& t, uint64_t mask) {
  const int tid = tid_of(t);
  user_regs_struct now{};
  read_registers(tid, now);
  if (now.rip == t.registers.rip && is_behind_call(tid, now.rip)) {
    const uint64_t call = t.registers.orig_rax;
    t.registers = now;
    t.registers.orig_rax = call;
    put_back_at_exit(t, false);
    t.was_held = true;
    t.reported = false;
    t.stop = Stop::kExit;
    return true;
  }
  take_event(tid);
  block_pending(t, mask);
  if (!go_to_call(t)) return false;
  take_event(tid);
  return true;
}

// They were off in our handler. Addresses before what enables them.
void write_debug_registers(const Tracee& t) {
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, kDebugControl, kDebugStatus}) {
    if (t.debug[i] != 0) trace::call(PTRACE_POKEUSR, tid_of(t), debug_register(i), t.debug[i]);
  }
}

}  // namespace

// In our handler, or on the way to it: it goes on, and what stopped it is sent again behind the handler.
void note_stop_meanwhile(Tracee& t, long asked, const siginfo_t& info, long request) {
  const int tid = tid_of(t), event = asked == 0 && info.si_code > 0xff ? info.si_code >> 8 : 0;
  if (asked == 0 && event != 0 && event != PTRACE_EVENT_STOP) {
    refuse(t, kEvent);
    // At its end it stops as it does anyway.
    if (event == PTRACE_EVENT_EXIT) {
      t.state = State::kNone;
      return;
    }
    take_event(tid);
  } else if (asked == 0 && event == 0 && info.si_signo == SIGTRAP && info.si_code > 0) {
    take_event(tid);  // a trap, or a system call, of our handler
  } else if (event == PTRACE_EVENT_STOP && info.si_signo == SIGTRAP) {
    take_event(tid);
    t.interrupted = true;
  } else if (asked == 0 && event == 0 && info.si_signo != SIGSTOP) {
    // It has come since those that waited were blocked.
    take_event(tid);
    trace::set_mask(tid, trace::mask_of(tid) | trace::bit_of(info.si_signo));
    send_again(t, info);
  } else {
    const bool own = asked == 0 && event == 0;  // SIGSTOP, which nobody can block
    if (!own) refuse(t, kGroup);
    const int status = take_event(tid);
    t.stop_came = own || WSTOPSIG(status) == 0 ? SIGSTOP : WSTOPSIG(status);
  }
  trace::resume(request, tid, 0);
}

// At the end of our handler: as it was before the checkpoint. marker: the signal that stopped it there. Where
// one of that number, of somebody else's, waited already, it is that one, and ours is lost.
void put_back(Tracee& t, const siginfo_t& marker) {
  const int tid = tid_of(t);
  points::at("tracing.marker");
  t.marker = marker.si_signo;
  if (t.was_held) look_at_handler_stack(t);
  // In our handler all are.
  trace::set_mask(tid, ~0ull);
  if (!is_own_marker(t, marker)) send_again(t, marker);
  if (t.was_held && t.stop == Stop::kSignal && !t.reported)
    sys::call(__NR_tgkill, t.process, tid, signal_of_stop(t));
  points::at("tracing.sent");
  take_event(tid);
  mark_calls(t, true);
  bool there = go_to_return(t);
  const uint64_t mask = trace::mask_of(tid);
  points::at("tracing.returned");
  if (there) {
    write_debug_registers(t);
    if (t.was_held) give_back_below(t);
    if (t.was_held && t.stop == Stop::kSignal)
      there = put_back_at_signal(t, mask);
    else if (t.was_held && t.stop == Stop::kExit && !t.reported && goes_on(t))
      there = put_back_in_rest(t, mask);
    else if (t.was_held && t.stop == Stop::kExit)
      put_back_at_exit(t, t.reported);
    else if (t.was_held)
      there = put_back_at_entry(t, mask);
    else if (t.in_call)
      there = put_back_in_call(t, mask);
    else
      take_event(tid);
    if (there) {
      trace::set_mask(tid, mask);
      mark_calls(t, false);
    }
  }
  t.stands = t.in_call = false;
  t.state = !there ? State::kNone : t.was_held ? State::kHeld : State::kRunning;
  give_back(t);
  points::at("tracing.back");
  if (t.state == State::kRunning) trace::resume(t.resumed_by == 0 ? PTRACE_CONT : t.resumed_by, tid, 0);
}

// A SIGCONT that came behind the stop has ended it: where it came first, the kernel has dropped it.
bool is_continued(const Tracee& t) {
  siginfo_t info{};
  if ((pending_of(tid_of(t)) & trace::bit_of(SIGCONT)) != 0) return true;
  return read_info(tid_of(t), info) && info.si_signo == SIGCONT;
}

void give_back(Tracee& t) {
  if (t.stop_came != 0 && !is_continued(t)) sys::call(__NR_tgkill, t.process, tid_of(t), t.stop_came);
  if (t.interrupted) trace::call(PTRACE_INTERRUPT, tid_of(t));
  t.stop_came = 0;
  t.interrupted = false;
}

}  // namespace ckpt::tracing
