// ckpt-backtrace PID TID: what one thread of any process is doing. `ckpt backtrace` becomes it. A program of
// its own: no other command should load libunwind, of which only this one has a use.
#include <elf.h>
#include <errno.h>
#include <libunwind-ptrace.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>

#include "base/clock.h"
#include "cli/image/core/demangle.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kStopLimitNs = 2'000'000'000;  // a thread in the kernel (state D) may take longer
constexpr int kMaxFrames = 128;

std::string task_line(pid_t pid, pid_t tid, const char* file) {
  std::ifstream in(fmt::format("/proc/{}/task/{}/{}", pid, tid, file));
  std::string line;
  std::getline(in, line);
  return line;
}

char thread_state(pid_t pid, pid_t tid) {
  std::string stat = task_line(pid, tid, "stat");
  size_t paren = stat.rfind(')');
  return paren != std::string::npos && paren + 2 < stat.size() ? stat[paren + 2] : '?';
}

void print_thread(pid_t pid, pid_t tid) {
  std::string wchan = task_line(pid, tid, "wchan");
  std::string call = task_line(pid, tid, "syscall");
  fmt::print("thread {} \"{}\" of process {}: state {}", tid, task_line(pid, tid, "comm"), pid,
             thread_state(pid, tid));
  if (!wchan.empty() && wchan != "0") fmt::print(", waits in {}", wchan);
  if (!call.empty()) fmt::print(", system call {}", call.substr(0, call.find(' ')));
  fmt::print("\n");
}

// "libfoo.so+0x1234" of an address, for code without symbols.
std::string module_offset(pid_t pid, uint64_t address) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    unsigned long long start = 0, end = 0, offset = 0;
    int path_at = 0;
    if (sscanf(line.c_str(), "%llx-%llx %*s %llx %*s %*s %n", &start, &end, &offset, &path_at) < 3) continue;
    if (address < start || address >= end) continue;
    std::string path = path_at > 0 && static_cast<size_t>(path_at) < line.size() ? line.substr(path_at) : "";
    if (path.empty()) return "anonymous memory";
    return fmt::format("{}+{:#x}", path.substr(path.rfind('/') + 1), address - start + offset);
  }
  return "no mapping";
}

void print_frames(pid_t pid, pid_t tid) {
  std::unique_ptr<void, decltype(&_UPT_destroy)> remote(_UPT_create(tid), _UPT_destroy);
  unw_addr_space_t space = unw_create_addr_space(&_UPT_accessors, 0);
  unw_cursor_t cursor;
  if (!remote || space == nullptr || unw_init_remote(&cursor, space, remote.get()) != 0) {
    fmt::print("  no backtrace: libunwind cannot read the thread\n");
    if (space != nullptr) unw_destroy_addr_space(space);
    return;
  }
  for (int frame = 0; frame < kMaxFrames; ++frame) {
    unw_word_t ip = 0, offset = 0;
    unw_get_reg(&cursor, UNW_REG_IP, &ip);
    char name[512] = {};
    // In a stripped library the nearest symbol may be that of another function: only the unwind table
    // says where this one starts.
    unw_proc_info_t function{};
    bool named = unw_get_proc_name(&cursor, name, sizeof(name), &offset) == 0 &&
                 (unw_get_proc_info(&cursor, &function) != 0 || function.start_ip == ip - offset);
    if (named) {
      fmt::print("  #{:<3}{:#018x} {} + {:#x}\n", frame, ip, function_name(name), offset);
    } else {
      fmt::print("  #{:<3}{:#018x} {}\n", frame, ip, module_offset(pid, ip));
    }
    if (unw_step(&cursor) <= 0) break;
  }
  unw_destroy_addr_space(space);
}

// Waits until the seized thread stands. False when it does not within the limit.
bool wait_for_stop(pid_t tid, int* status) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  int64_t deadline = now_ns() + kStopLimitNs;
  while (true) {
    pid_t got = waitpid(tid, status, __WALL | WNOHANG);
    if (got == tid) return true;
    int64_t left = deadline - now_ns();
    if (got < 0 || left <= 0) return false;
    timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    // SIGCHLD is blocked: one that came since waitpid is still there to be taken.
    sigtimedwait(&child, nullptr, &timeout);
  }
}

// As a command line that `ckpt backtrace` has checked.
Result<void> backtrace(pid_t pid, pid_t tid) {
  const std::string label = fmt::format("{}/{}", pid, tid);
  print_thread(pid, tid);
  fflush(stdout);

  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
    if (errno == EPERM) {
      return failure(ExitCode::kPermission, label,
                     "may not be traced (another tracer, other rights, or yama)",
                     "run as root, or sysctl kernel.yama.ptrace_scope=0");
    }
    return failure(ExitCode::kNoProcess, label, fmt::format("cannot be traced: {}", strerror(errno)),
                   "see /proc/PID/task");
  }
  int status = 0;
  // Whatever happens from here on, our exit lets the thread go.
  if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0 || !wait_for_stop(tid, &status)) {
    return failure(
        ExitCode::kTimeout, label,
        fmt::format("does not stop: state {}, in {}", thread_state(pid, tid), task_line(pid, tid, "wchan")),
        "it waits inside the kernel; see the device or file system it uses");
  }
  if (WIFEXITED(status) || WIFSIGNALED(status)) {
    return failure(ExitCode::kNoProcess, label, "exited meanwhile", "nothing to be done");
  }
  print_frames(pid, tid);
  // A stop that is not ours brings a signal: it is handed on, never swallowed.
  int signal = WIFSTOPPED(status) && (status >> 16) != PTRACE_EVENT_STOP ? WSTOPSIG(status) : 0;
  ptrace(PTRACE_DETACH, tid, nullptr, signal);
  return {};
}

}  // namespace

}  // namespace ckpt::cli

int main(int argc, char** argv) {
  using namespace ckpt;
  if (argc != 3) {
    fmt::print(stderr, "ckpt-backtrace: two arguments are wanted, PID and TID (use `ckpt backtrace`)\n");
    return static_cast<int>(ExitCode::kUsage);
  }
  const auto done = cli::backtrace(atoi(argv[1]), atoi(argv[2]));
  return static_cast<int>(done.ok() ? ExitCode::kOk : cli::report(done.error()));
}
