// Waits until a debugger sets `go`, then computes and prints what came of it. Another thread computes all the
// time.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

static volatile int go = 0;
static volatile uint64_t result = 0, others = 0;
static uint64_t table[512];

__attribute__((noreturn)) static void* other(void* unused) {
  (void)unused;
  for (;;) ++others;
}

__attribute__((noinline)) static uint64_t compute(uint64_t seed, double part) {
  for (unsigned i = 0; i < 2000; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    table[seed >> 55] += seed ^ i;
    part = part * 1.5 + (double)(seed >> 60);
    if (part > 1e6) part *= 1e-6;
  }
  return table[seed >> 55] ^ (uint64_t)(part * 1e3);
}

int main(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, other, NULL) != 0) return 1;
  puts("ready");
  fflush(stdout);
  while (go == 0) {
  }
  result = compute(7, 0.25);
  printf("%016llx\n", (unsigned long long)result);
  fflush(stdout);
  while (go == 1) {
  }
  return 0;
}
