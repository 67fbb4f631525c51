// Makes children without an end, in the way its first argument says, each of which ends at once, by itself or
// by another program; waits for each. Prints "up" first, and how many it has had at the end of its input.
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace {

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
    // Behind libc's back.
    if ((pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))) == 0) syscall(SYS_exit_group, 0);
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
