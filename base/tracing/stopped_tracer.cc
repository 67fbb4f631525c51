// Order of one checkpoint of a stopped process, and what may not be swapped:
//   1. All its threads are seized before any runs.
//   2. Our signal is sent to it. A held thread is let run when our signal is pending for it, with all others
//      blocked: a SIGTERM that waits for SIGCONT stays pending where it is, in its place.
//   3. When the kernel is about to deliver our signal, the thread gets its own mask back: the frame of the
//      handler has it, and so has the image.
//   4. The handler's return is a system call that opens our signal. At its end the thread is in the program's
//      state again, and has executed nothing of it: held.
//   5. A process that stands in the dynamic linker, before our library has started, is let run to where it
//      has (it does not answer else, as long as it is stopped): the handler is there, and our signal open.
//      Then 2. Its signals wait. The process does not come to its program: there is a breakpoint at the
//      entry.
//   6. The tracer lets go. The kernel stops each thread before it returns to its program
//      (JOBCTL_STOP_PENDING is set again by ptrace_unlink), and says nothing to the parent.
#include "base/tracing/stopped_tracer.h"

#include <errno.h>

#include <cstring>

#include "base/files/directory_scan.h"
#include "base/files/lines.h"
#include "base/tracing/trace_calls.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

using trace::bit_of;

constexpr int kSetxidSignal = 33;  // libc's, by which some threads are stopped (libckpt_rt/stop/stop_world.h)
constexpr int kSystemCallStop = SIGTRAP | 0x80;
constexpr uint64_t kOptions = PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD;

bool stops_a_process(int signal) {
  return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

bool is_thread_of_ours(int pid, int tid, uint64_t blocked, int signal) {
  return (blocked & bit_of(signal)) != 0 && ProcText(pid, tid, "/comm").text() == "ckpt_rt\n";
}

// The range of addresses at which the process has the library's code.
void find_library(int pid, uint64_t& start, uint64_t& end) {
  const ProcFile maps(pid, "/maps");
  start = end = 0;
  if (maps.fd() < 0) return;
  for_each_line<8192>(maps.fd(), [&](std::string_view line) {
    if (line.find(" r-xp ") == line.npos || line.find("/libckpt_rt.so") == line.npos) return true;
    if (start == 0) start = to_number(line, 16);
    end = to_number(line.substr(line.find('-') + 1), 16);
    return true;
  });
}

int process_of(int tid) { return static_cast<int>(ProcText(tid, tid, "/status").number("\nTgid:", 10)); }

}  // namespace

StoppedTracer::StoppedTracer(void* memory)
    : processes_(static_cast<Process*>(memory)),
      threads_(reinterpret_cast<Thread*>(processes_ + kMostProcesses)) {}

StoppedTracer::Thread* StoppedTracer::find(int tid) {
  for (size_t i = 0; i < thread_count_; ++i) {
    if (threads_[i].tid == tid) return &threads_[i];
  }
  return nullptr;
}

bool StoppedTracer::add(const Thread& thread) {
  if (thread_count_ == kMostThreads) return false;
  threads_[thread_count_++] = thread;
  return true;
}

void StoppedTracer::remove(int tid) {
  if (Thread* t = find(tid)) *t = threads_[--thread_count_];
}

// Seizes the threads that are listed and not traced yet. any: there were some.
long StoppedTracer::seize_listed(int process, bool& any) {
  const int pid = processes_[process].pid;
  const ProcFile tasks(pid, "/task");
  if (tasks.fd() < 0) return -ESRCH;
  any = false;
  long error = 0;
  const long listed = scan_directory(tasks.fd(), [&](std::string_view name) {
    const int tid = static_cast<int>(to_number(name, 10));
    if (tid == 0 || error != 0 || find(tid) != nullptr) return;
    const char state = ProcText(pid, tid, "/status").state();
    if (state == 'Z' || state == 'X' || state == '\0') return;
    const long r = trace::call(PTRACE_SEIZE, tid, 0, kOptions);
    if (r == -ESRCH) return;
    any = true;
    error = r != 0 ? r : add({tid, process, State::kSeizing, false, 0}) ? 0 : -ENOMEM;
  });
  return error != 0 ? error : listed;
}

long StoppedTracer::seize(int pid, int signal) {
  int process = 0;
  while (process < process_count_ && processes_[process].pid != pid) ++process;
  if (process == kMostProcesses) return -ENOMEM;
  if (process == process_count_) ++process_count_;
  Process& p = processes_[process];
  p = {pid, signal, SIGSTOP, 0, 0};
  find_library(pid, p.library_start, p.library_end);
  for (bool any = true; any;) {
    if (const long error = seize_listed(process, any); error != 0) return error;
  }
  // A thread that is stopped says so at once. A thread that is not stopped was continued meanwhile, or has
  // not come to its stop yet: it is asked.
  constexpr int kRounds = 2000, kAsk = 20;
  for (int round = 0; round < kRounds; ++round) {
    bool waits = false;
    for (const Thread& t : threads()) {
      if (t.process != process || t.state != State::kSeizing) continue;
      waits = true;
      if (round == kAsk) trace::call(PTRACE_INTERRUPT, t.tid);
    }
    if (!waits || p.stop_signal == 0) return 0;
    serve(1'000'000);
  }
  return -EAGAIN;
}

void StoppedTracer::serve(int64_t wait_ns) {
  take_events();
  look_for_signals();
  // An event is a SIGCHLD to whoever traces; it is blocked.
  const uint64_t child = bit_of(SIGCHLD);
  const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
  sys::call(__NR_rt_sigtimedwait, &child, 0L, &wait, 8L);
  take_events();
  look_for_signals();
  ++idle_rounds_;
}

void StoppedTracer::take_events() {
  int status = 0;
  while (const int tid = trace::next_event(-1, &status, WNOHANG)) on_event(tid, status);
}

void StoppedTracer::on_event(int tid, int status) {
  idle_rounds_ = 0;
  if (!WIFSTOPPED(status)) return remove(tid);
  Thread* t = find(tid);
  if (t == nullptr) return add_born(tid, status);
  on_stop(*t, status);
}

// Made by a thread of ours. A process is not stopped with its parent, and needs no help.
void StoppedTracer::add_born(int tid, int status) {
  const int pid = process_of(tid);
  for (int i = 0; i < process_count_; ++i) {
    if (processes_[i].pid != pid) continue;
    if (add({tid, i, State::kOurs, false, 0})) return on_stop(threads_[thread_count_ - 1], status);
  }
  trace::resume(PTRACE_DETACH, tid, 0);
}

// The dynamic linker's own mask is the program's, but for our signal, which our library opens.
void StoppedTracer::unmask(Thread& t) {
  if (!t.masked) return;
  const uint64_t ours = bit_of(processes_[t.process].signal);
  if (t.state == State::kStarting) {
    t.mask = (t.mask & ~ours) | (trace::mask_of(t.tid) & ours);
    trace::set_breakpoint(t.tid, 0);
  }
  trace::set_mask(t.tid, t.mask);
  t.masked = false;
}

// In a stop of it. signal: to be delivered, or 0.
void StoppedTracer::release_thread(Thread& t, int signal) {
  unmask(t);
  trace::resume(PTRACE_DETACH, t.tid, signal);
  remove(t.tid);
}

void StoppedTracer::continued(int process) {
  processes_[process].stop_signal = 0;
  for (size_t i = thread_count_; i-- > 0;) {
    Thread& t = threads_[i];
    if (t.process != process) continue;
    if (t.state == State::kHeld)
      release_thread(t, 0);
    else
      trace::call(PTRACE_INTERRUPT, t.tid);  // let go when it stops
  }
}

void StoppedTracer::on_stop(Thread& t, int status) {
  const int signal = WSTOPSIG(status), event = status >> 16;
  if (event == PTRACE_EVENT_STOP) return on_group_stop(t, signal);
  const bool of_ours = t.state == State::kOurs;
  const bool at_entry = t.state == State::kStarting && event == 0 && signal == SIGTRAP && is_at_entry(t);
  if (processes_[t.process].stop_signal == 0 || (ends_ && t.masked))
    return release_thread(t, event == 0 && signal != kSystemCallStop && !at_entry ? signal : 0);
  if (at_entry) return hold_started(t);
  if (event != 0) {
    trace::resume(of_ours ? PTRACE_CONT : PTRACE_SYSCALL, t.tid, 0);
  } else if (signal == kSystemCallStop) {
    on_system_call(t);
  } else {
    on_signal(t, signal);
  }
}

// The thread was stopped with its process, or has been asked, or SIGCONT came.
void StoppedTracer::on_group_stop(Thread& t, int signal) {
  Process& p = processes_[t.process];
  if (!stops_a_process(signal)) {
    const int process = t.process, tid = t.tid;
    if (p.stop_signal != 0) continued(process);
    if (Thread* again = find(tid); again != nullptr && again->state != State::kHeld)
      release_thread(*again, 0);
    return;
  }
  p.stop_signal = signal;
  if (ends_ && t.masked) return release_thread(t, 0);
  switch (t.state) {
    case State::kOurs:
      trace::resume(PTRACE_CONT, t.tid, 0);
      return;
    case State::kStarting:
    case State::kDelivering:
    case State::kInOurCode:
      trace::resume(PTRACE_SYSCALL, t.tid, 0);
      return;
    case State::kHeld:
      return;
    case State::kSeizing:
      break;
  }
  const uint64_t blocked = trace::mask_of(t.tid);
  t.state = State::kHeld;
  if ((ProcText(p.pid, p.pid, "/status").number("\nSigCgt:\t", 16) & bit_of(p.signal)) == 0) {
    let_start(t);
  } else if (is_thread_of_ours(p.pid, t.tid, blocked, p.signal)) {
    t.state = State::kOurs;
    trace::resume(PTRACE_CONT, t.tid, 0);
  } else if ((blocked & bit_of(p.signal)) != 0) {
    // The program cannot block our signal: it is in our handler, or in libc, where it stays.
    user_regs_struct registers{};
    trace::call(PTRACE_GETREGS, t.tid, 0, reinterpret_cast<uint64_t>(&registers));
    if (registers.rip < p.library_start || registers.rip >= p.library_end) return;
    t.state = State::kInOurCode;
    trace::resume(PTRACE_SYSCALL, t.tid, 0);
  }
}

// In the dynamic linker. Without a breakpoint it would come to the program if our library does not start.
void StoppedTracer::let_start(Thread& t) {
  const uint64_t entry = trace::told_at_exec(processes_[t.process].pid, AT_ENTRY);
  if (entry == 0 || !is_in_linker(t) || trace::set_breakpoint(t.tid, entry) != 0) return;
  t.mask = trace::mask_of(t.tid);
  t.masked = true;
  t.state = State::kStarting;
  // A signal that is blocked, and that the kernel has to send, loses its handler: SIGTRAP, by the breakpoint.
  const uint64_t open = bit_of(processes_[t.process].signal) | bit_of(SIGTRAP);
  trace::set_mask(t.tid, ~open | (t.mask & open));
  trace::resume(PTRACE_SYSCALL, t.tid, 0);
}

bool StoppedTracer::is_at_entry(const Thread& t) const {
  user_regs_struct registers{};
  trace::call(PTRACE_GETREGS, t.tid, 0, reinterpret_cast<uint64_t>(&registers));
  return registers.rip == trace::told_at_exec(processes_[t.process].pid, AT_ENTRY);
}

// The dynamic linker's first instruction calls, and so its return address is the first word below what the
// kernel has put on the stack. The program's first instructions (_start) write another value there. A library
// that did not start may be in a program that has long begun: that must not run.
bool StoppedTracer::is_in_linker(const Thread& t) const {
  constexpr uint64_t kMost = 1 << 20;  // bytes of a dynamic linker
  const int pid = processes_[t.process].pid;
  const uint64_t linker = trace::told_at_exec(pid, AT_BASE);
  const auto is_there = [linker](uint64_t address) { return address - linker < kMost; };
  user_regs_struct registers{};
  trace::call(PTRACE_GETREGS, t.tid, 0, reinterpret_cast<uint64_t>(&registers));
  const ProcText stat(pid, pid, "/stat");
  size_t at = stat.text().rfind(')');
  for (int field = 2; field < 28 && at != stat.text().npos; ++field) at = stat.text().find(' ', at + 1);
  if (linker == 0 || at == stat.text().npos) return false;
  const uint64_t start = to_number(stat.text().substr(at + 1), 10);
  if (registers.rsp == start) return is_there(registers.rip);  // before its first instruction
  uint64_t word = 0;
  return trace::call(PTRACE_PEEKDATA, t.tid, start - sizeof(word), reinterpret_cast<uint64_t>(&word)) == 0 &&
         is_there(word);
}

void StoppedTracer::hold_started(Thread& t) {
  Process& p = processes_[t.process];
  unmask(t);
  t.state = State::kHeld;
  find_library(p.pid, p.library_start, p.library_end);
}

void StoppedTracer::on_system_call(Thread& t) {
  ptrace_syscall_info info{};
  const long n = trace::call(PTRACE_GET_SYSCALL_INFO, t.tid, sizeof(info), reinterpret_cast<uint64_t>(&info));
  const bool ends = n > 0 && info.op == PTRACE_SYSCALL_INFO_EXIT;
  const uint64_t ours = bit_of(processes_[t.process].signal);
  if (ends && t.state == State::kInOurCode && (trace::mask_of(t.tid) & ours) == 0) {
    t.state = State::kHeld;
    return;
  }
  if (ends && t.state == State::kStarting && (trace::mask_of(t.tid) & ours) == 0 &&
      (ProcText(t.tid, t.tid, "/status").number("\nSigCgt:\t", 16) & ours) != 0)
    return hold_started(t);
  trace::resume(PTRACE_SYSCALL, t.tid, 0);
}

void StoppedTracer::on_signal(Thread& t, int signal) {
  const Process& p = processes_[t.process];
  if (t.state == State::kDelivering && (signal == p.signal || signal == kSetxidSignal)) {
    unmask(t);
    t.state = State::kInOurCode;
    trace::resume(PTRACE_SYSCALL, t.tid, signal);
    return;
  }
  // The process is stopped already, and SIGCONT would take these signals from it. But one that was continued
  // before it was seized is stopped by them, and whoever sent them waits for that.
  if (stops_a_process(signal) && t.state != State::kSeizing) signal = 0;
  trace::resume(t.state == State::kOurs ? PTRACE_CONT : PTRACE_SYSCALL, t.tid, signal);
}

void StoppedTracer::look_for_signals() {
  for (int i = 0; i < process_count_; ++i) {
    const Process& p = processes_[i];
    if (p.stop_signal == 0) continue;
    bool shared_taken = false;
    for (const Thread& t : threads())
      shared_taken = shared_taken || (t.process == i && t.state == State::kDelivering);
    for (Thread& t : threads()) {
      if (t.process != i || t.state != State::kHeld) continue;
      const ProcText status(p.pid, t.tid, "/status");
      const uint64_t own = status.number("\nSigPnd:\t", 16), shared = status.number("\nShdPnd:\t", 16);
      const uint64_t blocked = trace::mask_of(t.tid), both = bit_of(p.signal) | bit_of(kSetxidSignal);
      uint64_t wanted = own & both & ~blocked;
      if ((wanted & bit_of(p.signal)) != 0) wanted = bit_of(p.signal);
      // A signal that is pending for the process is taken by one thread.
      if (wanted == 0 && !shared_taken) {
        wanted = shared & bit_of(p.signal) & ~blocked;
        shared_taken = wanted != 0;
      }
      if (wanted == 0) continue;
      idle_rounds_ = 0;
      t.mask = blocked;
      t.masked = true;
      t.state = State::kDelivering;
      trace::set_mask(t.tid, ~wanted);
      trace::resume(PTRACE_SYSCALL, t.tid, 0);
    }
  }
}

int StoppedTracer::stop_signal(int pid) {
  for (int i = 0; i < process_count_; ++i) {
    if (processes_[i].pid != pid) continue;
    int asked = 0;
    for (const Thread& t : threads()) {
      if (asked == 0 && t.process == i && t.state == State::kOurs) asked = t.tid;
    }
    if (asked == 0 || processes_[i].stop_signal == 0) return processes_[i].stop_signal;
    // The event that answers names the signal by which its process is stopped, or none.
    trace::call(PTRACE_INTERRUPT, asked);
    for (;;) {
      int status = 0;
      if (trace::next_event(asked, &status, 0) == 0) return processes_[i].stop_signal;
      const bool answer = WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_STOP;
      on_event(asked, status);
      if (answer || find(asked) == nullptr) return processes_[i].stop_signal;
    }
  }
  return 0;
}

bool StoppedTracer::is_quiet() {
  for (Thread& t : threads()) {
    const Process& p = processes_[t.process];
    if (p.stop_signal == 0) continue;
    if (t.state == State::kOurs) {
      const ProcText status(p.pid, t.tid, "/status");
      const uint64_t slept = status.number("\nvoluntary_ctxt_switches:\t", 10);
      if (status.state() != 'S' || slept != t.slept) {
        t.slept = slept;
        return false;
      }
    } else if (t.state != State::kHeld) {
      return false;
    }
  }
  return true;
}

// Their masks are not their own: the tracer does not end before they are.
void StoppedTracer::interrupt_masked() {
  ends_ = true;
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    bool any = false;
    for (const Thread& t : threads()) {
      if (!t.masked) continue;
      any = true;
      trace::call(PTRACE_INTERRUPT, t.tid);
    }
    if (!any) return;
    serve(1'000'000);
  }
}

void StoppedTracer::release_all() {
  interrupt_masked();
  for (size_t i = thread_count_; i-- > 0;) {
    if (threads_[i].state == State::kHeld) release_thread(threads_[i], 0);
  }
  constexpr timespec kStep{0, 100'000};
  constexpr int kSteps = 10'000;
  for (int i = 0; i < process_count_; ++i) {
    const Process& p = processes_[i];
    for (int step = 0; step < kSteps && p.stop_signal != 0; ++step) {
      const char state = ProcText(p.pid, p.pid, "/status").state();
      if (state != 'R' && state != 't') break;
      sys::call(__NR_nanosleep, &kStep, nullptr);
    }
  }
}

}  // namespace ckpt
