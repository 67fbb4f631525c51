// What the tracing thread asks the kernel of one tracee, and tells it (ptrace(2), waitid(2)).
//
// Owner:     the files of this folder. Callers: the tracing thread. Never: libc.
#pragma once

#include <errno.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdint>

#include "base/files/task_text.h"
#include "base/tracing/trace_calls.h"
#include "libckpt_rt/stop/tracing/tracee_steps.h"

namespace ckpt::tracing {

using State = Tracee::State;
using Stop = Tracee::Stop;

inline constexpr const char
    *kGroup = "is in the stop of its group (SIGSTOP, a terminal's stop)",
    *kEvent = "is in an event that its tracer asked for (PTRACE_O_TRACE…, PTRACE_INTERRUPT)";
inline constexpr int kFirstQueued = 32;                       // real-time signals: each one is kept
inline constexpr uint64_t kNoCall = ~0ull, kInstruction = 2;  // bytes of `syscall`
// Errors of the kernel's own: the call is made again (ERESTARTSYS, -NOINTR, -NOHAND), or by another.
inline constexpr auto kRestartsLast = static_cast<uint64_t>(-512),
                      kRestartsFirst = static_cast<uint64_t>(-514),
                      kRestartsByBlock = static_cast<uint64_t>(-516);

inline constexpr size_t kDebugRegisters = 8, kDebugStatus = 6, kDebugControl = 7;
constexpr uint64_t debug_register(size_t i) { return offsetof(user, u_debugreg) + i * sizeof(uint64_t); }

// 0; -ESRCH: it runs, or is gone; -EINVAL: it is in the stop of its group.
inline long ask_info(int tid, siginfo_t& info) {
  return trace::call(PTRACE_GETSIGINFO, tid, 0, reinterpret_cast<uint64_t>(&info));
}
inline bool read_info(int tid, siginfo_t& info) { return ask_info(tid, info) == 0; }
inline void write_info(int tid, const siginfo_t& info) {
  trace::call(PTRACE_SETSIGINFO, tid, 0, reinterpret_cast<uint64_t>(&info));
}
inline void read_registers(int tid, user_regs_struct& registers) {
  trace::call(PTRACE_GETREGS, tid, 0, reinterpret_cast<uint64_t>(&registers));
}
inline void write_registers(int tid, const user_regs_struct& registers) {
  trace::call(PTRACE_SETREGS, tid, 0, reinterpret_cast<uint64_t>(&registers));
}

// A stop that wait(2) would tell of, without taking it, as waitid(2) codes it. 0: none.
inline int untold_event(int tid, int flags = WNOHANG) {
  siginfo_t event{};
  long r;
  while ((r = sys::call(__NR_waitid, P_PID, tid, &event, WEXITED | WSTOPPED | WNOWAIT | __WALL | flags,
                        0L)) == -EINTR) {
  }
  return r == 0 && event.si_pid == tid ? event.si_code : 0;
}

// Signals that wait for it, of its own and of its process.
inline uint64_t pending_of(int tid) {
  const ProcText status(tid, 0, "/status");
  return status.number("\nSigPnd:\t", 16) | status.number("\nShdPnd:\t", 16);
}

inline bool is_end(int code) { return code == CLD_EXITED || code == CLD_KILLED || code == CLD_DUMPED; }

// The wait(2) that the program would have made of a stop. An end is left for the program.
inline int take_event(int tid) {
  siginfo_t event{};
  long r;
  while ((r = sys::call(__NR_waitid, P_PID, tid, &event, WSTOPPED | WNOHANG | __WALL, 0L)) == -EINTR) {
  }
  return r == 0 && event.si_pid == tid ? event.si_status << 8 | 0x7f : 0;
}

// How the kernel marks the stop of a system call. In the second way where its tracer has
// PTRACE_O_TRACESYSGOOD.
inline constexpr int kCallCode = SIGTRAP, kGoodCallCode = SIGTRAP | 0x80;
inline bool is_of_call(const siginfo_t& info) {
  return info.si_signo == SIGTRAP && (info.si_code == kCallCode || info.si_code == kGoodCallCode);
}

// A stop of a system call: at its entry, its exit, or another stop. info: of the stop. The kernel tells where
// it is marked in the second way.
inline Stop stop_of_call(int tid, const siginfo_t& info) {
  siginfo_t good = info;
  good.si_code = kGoodCallCode;
  if (info.si_code != kGoodCallCode) write_info(tid, good);
  ptrace_syscall_info call{};
  const long r = trace::call(PTRACE_GET_SYSCALL_INFO, tid, sizeof(call), reinterpret_cast<uint64_t>(&call));
  if (info.si_code != kGoodCallCode) write_info(tid, info);
  if (r <= 0) return Stop::kUnknown;
  return call.op == PTRACE_SYSCALL_INFO_ENTRY  ? Stop::kEntry
         : call.op == PTRACE_SYSCALL_INFO_EXIT ? Stop::kExit
                                               : Stop::kSignal;
}

// Behind `syscall`: the call can be entered once more.
inline bool is_behind_call(int tid, uint64_t address) {
  constexpr uint64_t kSyscall = 0x050f;
  uint64_t word = 0;
  return trace::call(PTRACE_PEEKTEXT, tid, address - kInstruction, reinterpret_cast<uint64_t>(&word)) == 0 &&
         (word & 0xffff) == kSyscall;
}

// Of one that is held at the entry of a call: the kernel does not make it. Its tracer emulates calls
// (PTRACE_SYSEMU), or has taken the number away; the result is what it writes into the registers.
inline bool emulates(int request) { return request == PTRACE_SYSEMU || request == PTRACE_SYSEMU_SINGLESTEP; }
inline bool is_emulated(const Tracee& t) {
  return emulates(t.resumed_by) || static_cast<int>(t.registers.orig_rax) == -1;
}

inline bool is_cut_short(const user_regs_struct& registers) {
  return registers.rax >= kRestartsByBlock && registers.rax <= kRestartsLast;
}

}  // namespace ckpt::tracing
