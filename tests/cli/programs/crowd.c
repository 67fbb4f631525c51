/* Many threads that do next to nothing: each sleeps and reads eight bytes from a pipe of its own, into memory
 * that is being saved. crowd THREADS: says "up", then answers each line with how many rounds they have made.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { kBytes = 64 << 10, kPage = 4096 };
static long rounds;

static void* work(void* memory) {
  int ends[2];
  if (pipe(ends) != 0) return NULL;
  const struct timespec pause = {0, 200000000};
  for (int i = 0; nanosleep(&pause, NULL) == 0; ++i) {
    if (write(ends[1], &i, 4) != 4 || read(ends[0], (char*)memory + i % (kBytes / kPage) * kPage, 4) != 4)
      break;
    __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

int main(int argc, char** argv) {
  const long threads = argc > 1 ? atol(argv[1]) : 1;
  struct rlimit files = {2 * (rlim_t)threads + 100, 2 * (rlim_t)threads + 100}, have;
  if (getrlimit(RLIMIT_NOFILE, &have) == 0 && have.rlim_cur < files.rlim_cur &&
      setrlimit(RLIMIT_NOFILE, &files) != 0)
    return 2;
  char* memory = malloc((size_t)threads * kBytes);
  memset(memory, 1, (size_t)threads * kBytes);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 << 10);
  for (long i = 0; i < threads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, &small, work, memory + i * kBytes) != 0) return 3;
  }
  puts("up");
  fflush(stdout);
  for (int c; (c = getchar()) != EOF;) {
    if (c != '\n') continue;
    printf("%ld\n", __atomic_load_n(&rounds, __ATOMIC_RELAXED));
    fflush(stdout);
  }
  _exit(0);
}
