// Makes children without an end, in the way its first argument says, each of which ends at once, by itself or
// by another program; waits for each. Prints "up" first, and how many it has had at the end of its input.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// Behind libc's back. The child ends at once.
pid_t raw_clone(long flags, void* stack) {
  long result = SYS_clone;
  register long child_tid __asm__("r10") = 0;
  __asm__ volatile(
      "syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%edi, %%edi\n\tmov $231, %%eax\n\tsyscall\n1:"
      : "+a"(result)
      : "D"(flags), "S"(stack), "d"(0L), "r"(child_tid)
      : "rcx", "r11", "memory");
  return static_cast<pid_t>(result);
}

// A program that makes a process by a function that waits for it, too.
bool make_and_wait(const char* how) {
  if (strcmp(how, "system") == 0) return system("exit 0") == 0;
  FILE* pipe = popen("exit 0", "r");
  return pipe != nullptr && pclose(pipe) == 0;
}

pid_t make(const char* how) {
  char* argv[] = {const_cast<char*>("/bin/true"), nullptr};
  pid_t pid = -1;
  if (strcmp(how, "fork") == 0) {
    if ((pid = fork()) == 0) _exit(0);
  } else if (strcmp(how, "fork-exec") == 0) {
    if ((pid = fork()) == 0) {
      execv(argv[0], argv);
      _exit(127);
    }
  } else if (strcmp(how, "vfork") == 0) {
    if ((pid = vfork()) == 0) {
      execv(argv[0], argv);
      _exit(127);
    }
  } else if (strcmp(how, "spawn") == 0) {
    if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv, environ) != 0) pid = -1;
  } else if (strcmp(how, "clone") == 0) {
    alignas(16) static char stack[64 << 10];
    pid = clone([](void*) { return 0; }, stack + sizeof(stack), SIGCHLD, nullptr);
  } else if (strcmp(how, "syscall") == 0) {
    if ((pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))) == 0) syscall(SYS_exit_group, 0);
  } else if (strcmp(how, "raw-vfork") == 0) {
    alignas(16) static char stack[4096];
    pid = raw_clone(CLONE_VM | CLONE_VFORK | SIGCHLD, stack + sizeof(stack));
  } else if (strcmp(how, "raw") == 0) {
    pid = raw_clone(SIGCHLD, nullptr);
  }
  return pid;
}

bool input_has_ended() {
  pollfd in{0, POLLIN, 0};
  char byte;
  return poll(&in, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "fork";
  printf("up\n");
  fflush(stdout);
  long count = 0;
  while (!input_has_ended()) {
    if (strcmp(how, "system") == 0 || strcmp(how, "popen") == 0) {
      if (!make_and_wait(how)) return 1;
      ++count;
      continue;
    }
    const pid_t pid = make(how);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
      printf("failed after %ld: pid %d status %#x\n", count, pid, static_cast<unsigned>(status));
      return 1;
    }
    ++count;
  }
  printf("%ld\n", count);
  return 0;
}
