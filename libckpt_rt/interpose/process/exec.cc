// exec: a checkpoint signal may be pending when a thread executes another program. The signal would reach
// that program before its constructors ran, and its default action ends the process. So the signal is blocked
// before the call. A preloaded program unblocks it when our handler is installed (preload.cc); in any other
// program it stays blocked and does no harm. If the call fails the signal is unblocked and taken.
//
// In a child of vfork() only the child's own mask changes, and nothing of the shared memory.

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include "base/memory/fork_path.h"
#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/interpose/process/exec_beside.h"
#include "libckpt_rt/core/preload_rules.h"

namespace {

using ExecWithSearch = int (*)(const char*, char* const[], char* const[]);
constinit ExecWithSearch libc_execvpe = nullptr;  // the search along PATH is libc's

__attribute__((constructor)) void resolve() {
  libc_execvpe = reinterpret_cast<ExecWithSearch>(ckpt::dynamic_linker::find(RTLD_NEXT, "execvpe"));
}

class ScopedBlockedSignal {
 public:
  ScopedBlockedSignal() {
    uint64_t ours = bit();
    ckpt::hooks::begin_exec();  // before the mask: a stop that finds the signal blocked finds the reason
    ckpt::sys::call(__NR_rt_sigprocmask, SIG_BLOCK, &ours, &before_, 8L);
  }
  ~ScopedBlockedSignal() {
    uint64_t ours = bit();
    if ((before_ & ours) == 0) ckpt::sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &ours, 0L, 8L);
    ckpt::hooks::end_exec();
  }

 private:
  static uint64_t bit() {
    return 1ull << (ckpt::hooks::checkpoint_signal.load(std::memory_order_relaxed) - 1);
  }
  uint64_t before_ = 0;
};

// The result of an exec is always a failure.
int failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}

int exec_at(int directory, const char* path, char* const argv[], char* const envp[], int flags) {
  long r;
  {
    ScopedBlockedSignal blocked;
    r = ckpt::sys::call(__NR_execveat, directory, path, argv, envp, flags);
  }
  return failed(r);
}

// Returns where that is none for ckpt-beside. Looked at ahead of the signal's being blocked: each moment of
// that is one in which a request waits.
[[gnu::noinline]] void exec_beside(const char* path, char* const argv[], char* const envp[]) {
  CKPT_IF_BESIDE(path, argv, envp, {
    ScopedBlockedSignal blocked;
    ckpt::sys::call(__NR_execve, new_argv[0], new_argv, new_envp);
  });
}

CKPT_FORK_PATH int exec_path(const char* path, char* const argv[], char* const envp[]) {
  exec_beside(path, argv, envp);
  long r;
  {
    ScopedBlockedSignal blocked;
    r = ckpt::sys::call(__NR_execve, path, argv, envp);
  }
  return failed(r);
}

int exec_search(const char* file, char* const argv[], char* const envp[]) {
  if (libc_execvpe == nullptr) return exec_path(file, argv, envp);
  if (char path[PATH_MAX]; ckpt::search_path(file, path)) exec_beside(path, argv, envp);
  ScopedBlockedSignal blocked;
  return libc_execvpe(file, argv, envp);
}

// execl and its kin: the arguments up to the null pointer as an array on the stack, as libc has it.
#define CKPT_COLLECT_ARGUMENTS(first)                                               \
  va_list list;                                                                     \
  size_t count = 1;                                                                 \
  va_start(list, first);                                                            \
  while (va_arg(list, char*) != nullptr) ++count;                                   \
  va_end(list);                                                                     \
  auto** argv = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*))); \
  va_start(list, first);                                                            \
  argv[0] = const_cast<char*>(first);                                               \
  for (size_t i = 1; i <= count; ++i) argv[i] = va_arg(list, char*)

}  // namespace

#define CKPT_EXPORT extern "C" __attribute__((visibility("default")))

CKPT_EXPORT int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
  return exec_path(path, argv, envp);
}
CKPT_EXPORT int execv(const char* path, char* const argv[]) noexcept {
  return exec_path(path, argv, environ);
}
CKPT_EXPORT int execvp(const char* file, char* const argv[]) noexcept {
  return exec_search(file, argv, environ);
}
CKPT_EXPORT int execvpe(const char* file, char* const argv[], char* const envp[]) noexcept {
  return exec_search(file, argv, envp);
}
CKPT_EXPORT int execveat(int directory, const char* path, char* const argv[], char* const envp[],
                         int flags) noexcept {
  return exec_at(directory, path, argv, envp, flags);
}
CKPT_EXPORT int fexecve(int fd, char* const argv[], char* const envp[]) noexcept {
  if (fd < 0) {  // libc does not ask the kernel then
    errno = EINVAL;
    return -1;
  }
  return exec_at(fd, "", argv, envp, 0x1000 /* AT_EMPTY_PATH */);
}
CKPT_EXPORT int execl(const char* path, const char* arg, ...) noexcept {
  CKPT_COLLECT_ARGUMENTS(arg);
  va_end(list);
  return exec_path(path, argv, environ);
}
CKPT_EXPORT int execlp(const char* file, const char* arg, ...) noexcept {
  CKPT_COLLECT_ARGUMENTS(arg);
  va_end(list);
  return exec_search(file, argv, environ);
}
CKPT_EXPORT int execle(const char* path, const char* arg, ...) noexcept {
  CKPT_COLLECT_ARGUMENTS(arg);
  auto* envp = va_arg(list, char* const*);
  va_end(list);
  return exec_path(path, argv, envp);
}
