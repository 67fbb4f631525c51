// Threads set the process's effective user to what it is, without rest: libc tells each thread by a signal of
// its own, and waits until all have done so. A line of input is answered by "there" when that was done some
// more times.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 6, kMore = 20 };

static atomic_long times;

static void* set_it(void* none) {
  for (const uid_t user = geteuid();; ++times) {
    if (seteuid(user) != 0) _exit(1);
  }
  return none;
}

int main(void) {
  for (int i = 0; i < kThreads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, set_it, NULL) != 0) return 1;
  }
  puts("up");
  fflush(stdout);
  for (char line[16]; fgets(line, sizeof(line), stdin) != NULL;) {
    const struct timespec moment = {0, 1000000};
    for (const long now = times; times < now + kMore;) nanosleep(&moment, NULL);
    puts("there");
    fflush(stdout);
  }
  return 0;
}
