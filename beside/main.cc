// ckpt-beside [--or-alone] PROGRAM NAME [ARGUMENTS...]: executes a static program, with the library beside
// it. CKPT_BESIDE in the environment is what LD_PRELOAD is to be. --or-alone: where it may not be traced, the
// program is executed without the library.
//
// A child of a child of ours, which is nobody's that the program could wait for, traces this process until
// the program is there.
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/elf/static_go.h"
#include "base/protocol/beside_protocol.h"
#include "base/raii_fd.h"
#include "beside/beginning.h"
#include "beside/put_beside.h"

namespace ckpt::beside {

namespace {

int fail(const Error& error) {
  fprintf(stderr, "ckpt: %s\n", error.text);
  return static_cast<int>(error.code);
}

// By the dynamic linker, in the program's process: the library's constructor has run. The kernel is told to
// forget what libc has told it of this thread, which will be the program's.
int start_library() {
  using Start = int (*)();
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_DEFAULT, "ckpt_rt_start_beside"));
  const int signal = start == nullptr ? 0 : start();
  syscall(SYS_set_robust_list, nullptr, 3 * sizeof(void*));
  syscall(SYS_set_tid_address, nullptr);
  __asm__ volatile("int3" : : "D"(static_cast<long>(signal)), "S"(begin_behind_tracer));
  abort();  // the tracer has gone
}

// No SIGCHLD: a program that begins with that signal blocked would find it pending.
pid_t fork_silently() {
  return static_cast<pid_t>(syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr));
}

// What the caller has looked at may be another file by now; and a program with more rights than its caller is
// not for the dynamic linker.
bool may_have_library(int pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  const ScopedFd program(open((process + "/exe").c_str(), O_RDONLY | O_CLOEXEC));
  const ScopedFd said(open((process + "/auxv").c_str(), O_RDONLY | O_CLOEXEC));
  if (!program.valid() || !said.valid() || !is_static_go(program.get())) return false;
  Elf64_auxv_t value{};
  while (read(said.get(), &value, sizeof(value)) == sizeof(value) && value.a_type != AT_NULL) {
    if (value.a_type == AT_SECURE) return value.a_un.a_val == 0;
  }
  return false;
}

// Tells the program's process, which waits for it, that it is traced, or why not.
[[noreturn]] void trace(int pid, const std::string& own, bool or_alone, ScopedFd say) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  TracedProcess process(pid);
  const auto seized = process.seize();
  const Error answer = seized.ok() ? Error{ExitCode::kOk} : seized.error();
  if (write(say.get(), &answer, sizeof(answer)) != sizeof(answer) || !seized.ok()) _exit(1);
  say.reset();
  auto there = process.await_program();
  if (!there.ok()) _exit(fail(there.error()));
  if (!*there) _exit(1);  // it could not be executed, and has said so
  const auto detach = [&](uint64_t open) { _exit(process.detach(open).ok() ? 0 : 1); };
  if (!may_have_library(pid)) detach(0);
  auto put = put_library_beside(process, own);
  const auto bit = [](int signal) { return 1ull << (signal - 1); };
  if (put.ok()) detach(bit(*put) | bit(kSignalBeside));
  if (or_alone) detach(0);
  process.end(fail(put.error()));
  _exit(1);
}

// From here on another process traces this one.
Result<void> be_traced(const std::string& own, bool or_alone) {
  int to_tracer[2], from_tracer[2];
  if (pipe2(to_tracer, O_CLOEXEC) != 0)
    return make_error(ExitCode::kSystem, errno, "no pipe: {}; raise ulimit -n", errno_name(errno));
  ScopedFd hear(to_tracer[0]), tell(to_tracer[1]);
  if (pipe2(from_tracer, O_CLOEXEC) != 0)
    return make_error(ExitCode::kSystem, errno, "no pipe: {}; raise ulimit -n", errno_name(errno));
  ScopedFd answer(from_tracer[0]), say(from_tracer[1]);
  const pid_t self = getpid(), between = fork_silently();
  if (between == 0) {
    setsid();  // who stops the program's group does not stop the tracer
    const pid_t tracer = fork_silently();
    if (tracer != 0) {
      if (tracer > 0) (void)!write(say.get(), &tracer, sizeof(tracer));
      _exit(0);
    }
    char go;
    tell.reset();
    if (read(hear.get(), &go, 1) != 1) _exit(1);
    trace(self, own, or_alone, std::move(say));
  }
  say.reset();
  hear.reset();
  // Until it has a session of its own it may be stopped with the group, of which this one alone is continued.
  for (int status = 0; between > 0;) {
    const pid_t seen = waitpid(between, &status, __WALL | WUNTRACED);
    if (seen == between && WIFSTOPPED(status)) {
      kill(between, SIGCONT);
    } else if (seen == between || errno != EINTR) {
      break;
    }
  }
  pid_t tracer = 0;
  if (between < 0 || read(answer.get(), &tracer, sizeof(tracer)) != sizeof(tracer))
    return make_error(ExitCode::kSystem, 0, "no process that could trace the program; raise ulimit -u");
  prctl(PR_SET_PTRACER, tracer, 0, 0, 0);  // where Yama wants to know
  Error error;
  if (write(tell.get(), "", 1) != 1 || read(answer.get(), &error, sizeof(error)) != sizeof(error))
    return make_error(ExitCode::kSystem, 0, "the process that traces the program is gone; try again");
  if (error.code != ExitCode::kOk) return error;
  return {};
}

int run(char** argv, bool or_alone) {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
  own[length > 0 ? length : 0] = '\0';
  if (const char* preload = getenv(kBesideVariable); preload != nullptr) setenv("LD_PRELOAD", preload, 1);
  unsetenv(kBesideVariable);
  const Result<void> traced = length > 0
                                  ? be_traced(own, or_alone)
                                  : make_error(ExitCode::kUnavailable, errno, "there is no /proc; mount it");
  if (!traced.ok() && !or_alone) return fail(traced.error());
  execv(argv[1], argv + 2);
  return fail(
      make_error(ExitCode::kNotFound, errno, "{}: cannot be started ({})", argv[1], errno_name(errno)));
}

}  // namespace

}  // namespace ckpt::beside

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], ckpt::beside::kStartLibrary) == 0) return ckpt::beside::start_library();
  const bool or_alone = argc >= 2 && strcmp(argv[1], ckpt::kOrAlone) == 0;
  if (argc >= 3 + or_alone) return ckpt::beside::run(argv + or_alone, or_alone);
  fprintf(stderr,
          "ckpt-beside: is run by ckpt run, for a static program: ckpt-beside PROGRAM NAME [ARGUMENTS...]\n");
  return static_cast<int>(ckpt::ExitCode::kUsage);
}
