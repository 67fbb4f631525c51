#include "libckpt_rt/stop/stuck_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/sched.h>
#include <sys/wait.h>

#include "base/raii_fd.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

struct Command {
  int output;
  int exit_status;
  std::byte* stack_top;  // of the process that executes the command
  char path[1100], pid[16], tid[16];
};

// On a stack of its own, sharing our memory until it executes.
void run_command(void* argument) {
  auto* c = static_cast<Command*>(argument);
  char name[] = "ckpt", verb[] = "backtrace";
  char* const argv[] = {name, verb, c->pid, c->tid, nullptr};
  char* const envp[] = {nullptr};  // above all not our LD_PRELOAD
  sys::call(__NR_dup3, c->output, 1, 0);
  sys::call(__NR_dup3, c->output, 2, 0);
  sys::call(__NR_execve, static_cast<const char*>(c->path), argv, envp);
  sys::call(__NR_exit_group, 127);
}

// The command is our grandchild: exec(2) gives a child the exit signal SIGCHLD, whatever it was made with.
// The program would see the signal, and in wait(2) a child that it knows nothing of.
void run_and_wait(void* argument) {
  auto* c = static_cast<Command*>(argument);
  long child =
      ckpt_clone_thread(CLONE_VM | CLONE_VFORK, c->stack_top, nullptr, nullptr, nullptr, &run_command, c);
  int status = 0;
  if (!sys::failed(child)) {
    while (sys::call(__NR_wait4, child, &status, __WALL, 0L) == -EINTR) {
    }
  }
  c->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  sys::call(__NR_exit_group, 0);
}

}  // namespace

void log_backtrace(int dir_fd, std::string_view library_path, int pid, int tid, Arena& arena) {
  constexpr size_t kStack = 32 << 10;
  auto* stack = static_cast<std::byte*>(arena.allocate(2 * kStack, 64));
  auto* command = static_cast<Command*>(arena.allocate(sizeof(Command)));
  size_t slash = library_path.rfind('/');
  if (stack == nullptr || command == nullptr || slash == std::string_view::npos) return;
  ScopedFd log(static_cast<int>(sys::call(__NR_openat, dir_fd, "ckpt_rt.log",
                                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)));
  if (!log.valid()) {
    log.release();
    return;
  }
  *fmt::format_to_n(command->path, sizeof(command->path) - 1, "{}/../bin/ckpt", library_path.substr(0, slash))
       .out = '\0';
  *fmt::format_to_n(command->pid, sizeof(command->pid) - 1, "{}", pid).out = '\0';
  *fmt::format_to_n(command->tid, sizeof(command->tid) - 1, "{}", tid).out = '\0';
  command->output = log.get();
  command->exit_status = 0;
  command->stack_top = stack + 2 * kStack;
  // CLONE_VFORK: we go on when the child is gone. No exit signal: see run_and_wait.
  long child = ckpt_clone_thread(CLONE_VM | CLONE_VFORK, stack + kStack, nullptr, nullptr, nullptr,
                                 &run_and_wait, command);
  if (sys::failed(child)) return;
  int status = 0;
  while (sys::call(__NR_wait4, child, &status, __WCLONE, 0L) == -EINTR) {
  }
  if (command->exit_status == 127) log_format(dir_fd, "no backtrace: {} cannot be run", command->path);
}

}  // namespace ckpt
