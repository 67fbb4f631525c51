// Replaces mappings without pause, and leaves the calls in which it does so by siglongjmp, from the handler
// of a timer. The program ends well when the file `end` is there and it has left some.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kBlocks = 64, kBlock = 1 << 20 };

static sigjmp_buf out;
static volatile sig_atomic_t inside;
static volatile long left;

static void leave(int signal) {
  (void)signal;
  if (!inside) return;
  inside = 0;
  ++left;
  siglongjmp(out, 1);
}

int main(void) {
  char* arena =
      mmap(NULL, (size_t)kBlocks * kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) return 1;
  memset(arena, 1, (size_t)kBlocks * kBlock);
  signal(SIGALRM, leave);
  timer_t timer;
  struct sigevent by_signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  if (timer_create(CLOCK_MONOTONIC, &by_signal, &timer) != 0) return 1;
  const struct itimerspec often = {{0, 100000}, {0, 100000}};
  if (timer_settime(timer, 0, &often, NULL) != 0) return 1;
  puts("up");
  fflush(stdout);
  for (volatile int block = 0; access("end", F_OK) != 0 || left == 0; block = (block + 1) % kBlocks) {
    char* at = arena + (size_t)block * kBlock;
    if (sigsetjmp(out, 1) == 0) {
      inside = 1;
      if (mmap(at, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          MAP_FAILED)
        return 1;
    }
    inside = 0;
    memset(at, 2, kBlock);
  }
  printf("left %ld\n", left);
  return 0;
}
