// ckpt-beside PROGRAM NAME [ARGUMENTS...]: executes a static program, with the library beside it. CKPT_BESIDE in the environment is what LD_PRELOAD
// is to be.
//
// A child of a child of ours, which is nobody's that the program could wait for, traces this process until the program is there.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/rseq.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/raii_fd.h"
#include "beside/put_beside.h"
#include "include/ckpt_rt.h"

namespace ckpt::beside {

namespace {

constexpr const char* kPreload = "CKPT_BESIDE";

int fail(const Error& error) {
  fprintf(stderr, "ckpt: %s\n", error.text);
  return static_cast<int>(error.code);
}

// By the dynamic linker, in the program's process: the library's constructor has run. The kernel is told to forget what libc has told it of this
// thread, which will be the program's.
int start_library() {
  using Start = int (*)();
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_DEFAULT, "ckpt_rt_start_beside"));
  if (start == nullptr || start() != 0) return static_cast<int>(ExitCode::kUnavailable);
  syscall(SYS_set_robust_list, nullptr, 3 * sizeof(void*));
  syscall(SYS_set_tid_address, nullptr);
  __asm__ volatile("int3");
  abort();  // the tracer has gone
}

// Tells the program's process, which waits for a byte, that it is traced: 0, or the exit code.
[[noreturn]] void trace(int pid, const std::string& own, ScopedFd say) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  TracedProcess process(pid);
  const auto seized = process.seize();
  const char code = seized.ok() ? 0 : static_cast<char>(fail(seized.error()));
  if (write(say.get(), &code, 1) != 1 || code != 0) _exit(code);
  say.reset();
  if (!process.await_program().ok()) _exit(1);  // it could not be executed, and has said so
  const auto put = put_library_beside(process, own);
  const auto gone = put.ok() ? process.let_go() : put;
  if (gone.ok()) _exit(0);
  process.end(fail(gone.error()));
  _exit(1);
}

int run(char** argv) {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
  if (length <= 0)
    return fail(make_error(ExitCode::kSystem, errno, "/proc/self/exe: {}; mount /proc", errno_name(errno)));
  own[length] = '\0';
  if (const char* preload = getenv(kPreload); preload != nullptr) setenv("LD_PRELOAD", preload, 1);
  unsetenv(kPreload);
  int to_tracer[2], from_tracer[2];
  if (pipe2(to_tracer, O_CLOEXEC) != 0 || pipe2(from_tracer, O_CLOEXEC) != 0)
    return fail(make_error(ExitCode::kSystem, errno, "no pipe: {}; raise ulimit -n", errno_name(errno)));
  ScopedFd hear(to_tracer[0]), tell(to_tracer[1]), answer(from_tracer[0]), say(from_tracer[1]);
  const pid_t self = getpid(), between = fork();
  if (between < 0)
    return fail(make_error(ExitCode::kSystem, errno, "no process: {}; raise ulimit -u", errno_name(errno)));
  if (between == 0) {
    const pid_t tracer = fork();
    if (tracer != 0) {
      if (tracer > 0) (void)!write(say.get(), &tracer, sizeof(tracer));
      _exit(tracer < 0);
    }
    char go;
    tell.reset();
    if (read(hear.get(), &go, 1) != 1) _exit(1);
    trace(self, own, std::move(say));
  }
  say.reset();
  hear.reset();
  int status = 0;
  while (waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  pid_t tracer = 0;
  char code = 0;
  if (read(answer.get(), &tracer, sizeof(tracer)) != sizeof(tracer))
    return fail(make_error(ExitCode::kSystem, 0, "no process to trace the program; raise ulimit -u"));
  prctl(PR_SET_PTRACER, tracer, 0, 0, 0);  // where Yama wants to know
  if (write(tell.get(), "", 1) != 1 || read(answer.get(), &code, 1) != 1)
    return fail(make_error(ExitCode::kSystem, 0, "the process that traces the program is gone; try again"));
  if (code != 0) return code;
  tell.reset();
  execv(argv[1], argv + 2);
  return fail(
      make_error(ExitCode::kNotFound, errno, "{}: cannot be started ({})", argv[1], errno_name(errno)));
}

}  // namespace

}  // namespace ckpt::beside

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], ckpt::beside::kStartLibrary) == 0) return ckpt::beside::start_library();
  if (argc >= 3) return ckpt::beside::run(argv);
  fprintf(stderr,
          "ckpt-beside: is run by ckpt run, for a static program: ckpt-beside PROGRAM NAME [ARGUMENTS...]\n");
  return static_cast<int>(ckpt::ExitCode::kUsage);
}
