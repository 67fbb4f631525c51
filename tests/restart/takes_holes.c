// Unmaps a range, waits, and maps it again with MAP_FIXED, as a program may that has one thread: nobody else
// maps anything. A stack of its own grows down into another hole (MAP_GROWSDOWN). Prints "ok" in the end.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { kHole = 96 << 20, kPage = 4096, kRounds = 60 };

int main(void) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* hole = mmap(NULL, 2 * (size_t)kHole, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (hole == MAP_FAILED) return 1;
  char* stack = hole + 2 * (size_t)kHole - kPage;
  munmap(hole + kHole, kHole);
  if (mmap(stack, kPage, PROT_READ | PROT_WRITE, flags | MAP_GROWSDOWN | MAP_FIXED, -1, 0) == MAP_FAILED)
    return 1;
  puts("ready");
  fflush(stdout);
  for (int round = 1; round <= kRounds; ++round) {
    munmap(hole, kHole);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    if (mmap(hole, kHole, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) != hole) return 2;
    for (size_t at = 0; at < kHole; at += 64 * kPage) {
      if (hole[at] != 0) return 3;
      hole[at] = (char)round;
    }
    stack -= 8 * kPage;
    for (int page = 7; page >= 0; --page) stack[page * kPage] = (char)round;
  }
  puts("ok");
  return 0;
}
