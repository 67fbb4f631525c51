// In a thread: a child of vfork that reads a byte, and then executes the program given. Prints "up" before,
// and the child's wait status. With OWN_MEMORY in the environment the child has memory of its own, and the
// thread waits for it all the same (CLONE_VFORK).
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void* make_child(void* arguments) {
  char** argv = arguments;
  int status = -1;
  const int own = getenv("OWN_MEMORY") != 0;
  pid_t pid = own ? (pid_t)syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) : vfork();
  if (pid == 0) {
    char byte;
    if (read(0, &byte, 1) == 1) execvp(argv[1], argv + 1);
    _exit(127);
  }
  waitpid(pid, &status, 0);
  printf("%d\n", status);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  puts("up");
  fflush(stdout);
  pthread_t thread;
  if (pthread_create(&thread, 0, make_child, argv) != 0) return 1;
  pthread_join(thread, 0);
  return 0;
}
