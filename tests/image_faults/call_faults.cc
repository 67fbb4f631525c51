#include "tests/image_faults/call_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <map>

namespace ckpt {

namespace {

constexpr uint64_t kBlock = 4096;

class Tracer {
 public:
  Tracer(pid_t child, const std::string& directory, const CallFault& fault)
      : child_(child), directory_(directory), fault_(fault) {}

  CallOutcome run() {
    int status = 0;
    waitpid(child_, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child_, 0,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC);
    go_on(child_, 0);
    for (;;) {
      pid_t tid = waitpid(-1, &status, __WALL);
      if (tid < 0) break;
      if (WIFEXITED(status) || WIFSIGNALED(status)) {
        if (tid != child_) continue;
        outcome_.killed = WIFSIGNALED(status);
        outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        break;
      }
      const int signal = WSTOPSIG(status);
      if (signal == (SIGTRAP | 0x80)) {
        if (!at_call(tid)) continue;  // it has been killed
        go_on(tid, 0);
      } else {
        // A thread that is new stops by SIGSTOP, an event by SIGTRAP.
        go_on(tid, signal == SIGSTOP || status >> 16 != 0 ? 0 : signal);
      }
    }
    return std::move(outcome_);
  }

 private:
  struct Pending {
    bool fail = false;
    bool kill = false;
    uint64_t vector = 0, length = 0;  // an iovec that was made shorter
    uint64_t pieces = 0;              // or the number of them, before it was made smaller
  };

  static void go_on(pid_t tid, int signal) { ptrace(PTRACE_SYSCALL, tid, 0, signal); }

  bool kill_all() {
    outcome_.applied = true;
    kill(child_, SIGKILL);
    return false;
  }

  // At the entry or the exit of a call. False when the process has been killed.
  bool at_call(pid_t tid) {
    __ptrace_syscall_info info{};
    if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof(info), &info) <= 0) return true;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) return entry(tid, info);
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) return exit(tid);
    return true;
  }

  bool entry(pid_t tid, const __ptrace_syscall_info& info) {
    const long number = static_cast<long>(info.entry.nr);
    if (!counts(tid, info)) return true;
    const int at = static_cast<int>(outcome_.calls.size());
    outcome_.calls.push_back(number);
    const bool later = fault_.kind == CallFault::kFailOn && at > fault_.at && brings_bytes(number);
    if (at != fault_.at && !later) return true;
    Pending& pending = pending_[tid];
    switch (fault_.kind) {
      case CallFault::kNone:
        break;
      case CallFault::kFail:
      case CallFault::kFailOn:
        set_register(tid, offsetof(user_regs_struct, orig_rax), ~0ull);
        pending.fail = outcome_.applied = true;
        break;
      case CallFault::kKillBefore:
        return kill_all();
      case CallFault::kKillAfter:
        pending.kill = true;
        break;
      case CallFault::kShort:
      case CallFault::kTorn:
        outcome_.applied = pending.kill = shorten(tid, number, info, pending);
        if (fault_.kind == CallFault::kShort) pending.kill = false;
        break;
    }
    return true;
  }

  bool exit(pid_t tid) {
    auto it = pending_.find(tid);
    if (it == pending_.end()) return true;
    const Pending pending = it->second;
    pending_.erase(it);
    if (pending.fail)
      set_register(tid, offsetof(user_regs_struct, rax), static_cast<uint64_t>(-fault_.error));
    if (pending.vector != 0) poke(pending.vector, pending.length);
    if (pending.pieces != 0) set_register(tid, offsetof(user_regs_struct, rdx), pending.pieces);
    return pending.kill ? kill_all() : true;
  }

  static bool brings_bytes(long number) {
    return number == __NR_pwritev || number == __NR_pwrite64 || number == __NR_write ||
           number == __NR_fallocate || number == __NR_fsync || number == __NR_io_uring_enter;
  }

  bool counts(pid_t tid, const __ptrace_syscall_info& info) {
    const uint64_t* a = info.entry.args;
    switch (info.entry.nr) {
      case __NR_io_uring_setup:
      case __NR_io_uring_enter:
      case __NR_io_uring_register:
        return true;
      case __NR_openat:
        return (a[2] & O_CREAT) != 0 && inside(tid, a[0]);
      case __NR_fcntl:
        return a[1] == F_SETFL && inside(tid, a[0]);
      case __NR_write:
      case __NR_writev:
      case __NR_pwrite64:
      case __NR_pwritev:
      case __NR_pwritev2:
      case __NR_copy_file_range:
      case __NR_fsync:
      case __NR_fdatasync:
      case __NR_ftruncate:
      case __NR_fallocate:
      case __NR_fchmod:
      case __NR_renameat:
      case __NR_renameat2:
      case __NR_unlinkat:
      case __NR_mkdirat:
        return inside(tid, a[0]);
      default:
        return false;
    }
  }

  bool inside(pid_t tid, uint64_t fd) const {
    char target[PATH_MAX];
    const std::string link = "/proc/" + std::to_string(tid) + "/fd/" + std::to_string(static_cast<int>(fd));
    const ssize_t n = readlink(link.c_str(), target, sizeof(target));
    return n > 0 &&
           std::string(target, static_cast<size_t>(n)).compare(0, directory_.size(), directory_) == 0;
  }

  // Half of the blocks of one piece, or half of several pieces.
  bool shorten(pid_t tid, long number, const __ptrace_syscall_info& info, Pending& pending) {
    if (number != __NR_pwritev) return false;
    if (info.entry.args[2] > 1) {
      pending.pieces = info.entry.args[2];
      set_register(tid, offsetof(user_regs_struct, rdx), pending.pieces / 2);
      return true;
    }
    iovec vector;
    iovec local{&vector, sizeof(vector)}, remote{reinterpret_cast<void*>(info.entry.args[1]), sizeof(vector)};
    if (process_vm_readv(child_, &local, 1, &remote, 1, 0) != sizeof(vector)) return false;
    const uint64_t half = vector.iov_len / 2 / kBlock * kBlock;
    if (half == 0) return false;
    pending.vector = info.entry.args[1] + offsetof(iovec, iov_len);
    pending.length = vector.iov_len;
    poke(pending.vector, half);
    return true;
  }

  void poke(uint64_t address, uint64_t value) const {
    iovec local{&value, sizeof(value)}, remote{reinterpret_cast<void*>(address), sizeof(value)};
    if (process_vm_writev(child_, &local, 1, &remote, 1, 0) != sizeof(value)) abort();
  }
  static void set_register(pid_t tid, size_t offset, uint64_t value) {
    if (ptrace(PTRACE_POKEUSER, tid, offset, value) != 0) abort();
  }

  pid_t child_;
  const std::string directory_;
  const CallFault fault_;
  std::map<pid_t, Pending> pending_;
  CallOutcome outcome_;
};

std::string all_of(int fd) {
  std::string text;
  char buffer[4096];
  off_t at = 0;
  for (ssize_t n; (n = pread(fd, buffer, sizeof(buffer), at)) > 0; at += n)
    text.append(buffer, static_cast<size_t>(n));
  return text;
}

}  // namespace

CallOutcome run_with_fault(const std::string& directory, const std::function<int()>& body,
                           const CallFault& fault) {
  const int said = memfd_create("said", MFD_CLOEXEC);
  fflush(stdout);
  fflush(stderr);
  pid_t child = fork();
  if (child == 0) {
    dup2(said, STDERR_FILENO);
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    const int code = body();
    fflush(stderr);
    _exit(code);
  }
  CallOutcome outcome = Tracer(child, directory, fault).run();
  outcome.said = all_of(said);
  close(said);
  return outcome;
}

std::string call_name(long number) {
  static const std::map<long, const char*> names = {
      {__NR_io_uring_setup, "io_uring_setup"},
      {__NR_io_uring_enter, "io_uring_enter"},
      {__NR_io_uring_register, "io_uring_register"},
      {__NR_openat, "openat"},
      {__NR_fcntl, "fcntl"},
      {__NR_write, "write"},
      {__NR_pwrite64, "pwrite64"},
      {__NR_pwritev, "pwritev"},
      {__NR_fsync, "fsync"},
      {__NR_ftruncate, "ftruncate"},
      {__NR_fallocate, "fallocate"},
      {__NR_fchmod, "fchmod"},
      {__NR_renameat, "renameat"},
      {__NR_renameat2, "renameat2"},
      {__NR_unlinkat, "unlinkat"},
      {__NR_mkdirat, "mkdirat"},
  };
  auto it = names.find(number);
  return it == names.end() ? std::to_string(number) : it->second;
}

}  // namespace ckpt
