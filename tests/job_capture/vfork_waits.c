// In a thread: a child of vfork that reads a byte, and then executes the program given. Prints "up" before,
// and the child's wait status.
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void* make_child(void* arguments) {
  char** argv = arguments;
  int status = -1;
  pid_t pid = vfork();
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
