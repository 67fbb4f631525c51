// Children made in every way that a program has; each says its number, and counts. The children wait for the
// end of their standard input.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace {

volatile long counter = 0;
const char* self = nullptr;

void say(const char* how) {
  char line[64];
  const int n = snprintf(line, sizeof(line), "%s %d\n", how, static_cast<int>(getpid()));
  if (write(1, line, static_cast<size_t>(n)) != n) _exit(1);
}

// With memory that comes and goes, and a child of its own that ends.
[[noreturn]] void live(const char* how) {
  say(how);
  const pid_t parent = getppid();
  while (getppid() == parent) {
    void* memory = malloc(1 << 20);
    memset(memory, 1, 1 << 20);
    free(memory);
    const pid_t child = fork();
    if (child == 0) _exit(7);
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) _exit(2);
    counter = counter + 1;
    usleep(20'000);
  }
  _exit(0);
}

void by_handler(int) {
  if (fork() == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    live("handler");
  }
}

void* by_thread(void*) {
  if (fork() == 0) live("thread");
  return nullptr;
}

void* wait_for_ever(void*) {
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  self = argv[0];
  if (argc > 1) live(argv[1]);
  if (fork() == 0) live("fork");
  if (_Fork() == 0) live("_Fork");
  if (syscall(SYS_clone, SIGCHLD, 0L, 0L, 0L, 0L) == 0) live("clone");
  signal(SIGUSR1, by_handler);
  raise(SIGUSR1);
  pthread_t thread;
  pthread_create(&thread, nullptr, by_thread, nullptr);
  pthread_join(thread, nullptr);
  if (vfork() == 0) {
    execl(self, self, "vfork", nullptr);
    _exit(1);
  }
  char how[] = "spawn";
  char* command[] = {const_cast<char*>(self), how, nullptr};
  pid_t spawned = 0;
  if (posix_spawn(&spawned, self, nullptr, nullptr, command, environ) != 0) return 1;
  // A child that makes a process by vfork before anything else.
  if (fork() == 0) {
    if (vfork() == 0) {
      execl(self, self, "grandchild", nullptr);
      _exit(1);
    }
    live("fork-vfork");
  }
  // A child with threads.
  if (fork() == 0) {
    pthread_t more;
    pthread_create(&more, nullptr, wait_for_ever, nullptr);
    live("threads");
  }
  say("first");
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  return 0;
}
