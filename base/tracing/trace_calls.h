// ptrace(2), for StoppedTracer.
//
// Owner:     base. Header only. Callers: a tracer. Never: libc.
#pragma once

#include <elf.h>
#include <fcntl.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdint>

#include "base/files/task_text.h"
#include "base/sys.h"

namespace ckpt::trace {

inline long call(long request, int tid, uint64_t address = 0, uint64_t data = 0) {
  return sys::call(__NR_ptrace, request, tid, address, data);
}
inline long resume(long request, int tid, int signal) {
  return call(request, tid, 0, static_cast<uint64_t>(signal));
}

// Without reaping: 0 nothing, else the thread; *status as waitpid(2) gives it.
inline int next_event(int tid, int* status, int flags) {
  long r;
  while ((r = sys::call(__NR_wait4, tid, status, flags | __WALL, 0L)) == -4 /* EINTR */) {
  }
  return r > 0 ? static_cast<int>(r) : 0;
}

inline uint64_t mask_of(int tid) {
  uint64_t mask = 0;
  call(PTRACE_GETSIGMASK, tid, sizeof(mask), reinterpret_cast<uint64_t>(&mask));
  return mask;
}
inline void set_mask(int tid, uint64_t mask) {
  call(PTRACE_SETSIGMASK, tid, sizeof(mask), reinterpret_cast<uint64_t>(&mask));
}

// A processor's breakpoint: the process stops with SIGTRAP before it executes what is at the address. 0: none
// any more.
inline long set_breakpoint(int tid, uint64_t address) {
  constexpr uint64_t kFirstForThread = 1;  // DR7: the first register, execution, one byte
  const auto put = [tid](size_t index, uint64_t value) {
    return call(PTRACE_POKEUSR, tid, offsetof(user, u_debugreg) + index * sizeof(uint64_t), value);
  };
  if (address == 0) return put(7, 0);
  const long error = put(0, address);
  return error != 0 ? error : put(7, kFirstForThread);
}

inline uint64_t bit_of(int signal) { return 1ull << (signal - 1); }

// What the kernel has told a process at its exec (AT_ENTRY: the program's first instruction, AT_BASE: where
// the dynamic linker is, ...). 0: not known.
inline uint64_t told_at_exec(int pid, uint64_t what) {
  const ProcFile file(pid, "/auxv");
  uint64_t pairs[2 * 64];
  const long n = file.fd() < 0 ? 0 : sys::call(__NR_read, file.fd(), pairs, sizeof(pairs));
  for (long i = 0; i + 1 < n / 8; i += 2) {
    if (pairs[i] == what) return pairs[i + 1];
  }
  return 0;
}

}  // namespace ckpt::trace
