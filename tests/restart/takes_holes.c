// Unmaps ranges of many sizes, waits, and maps them again at their place, as a program may that has one
// thread: nobody else maps anything. A stack of its own grows down into another hole (MAP_GROWSDOWN).
//
// Prints the holes. Then, without an argument, does so again and again, often enough and until its input
// ends, and prints "ok"; with one, once for each line of its input, and answers by "ok".
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { kPage = 4096, kRounds = 60, kHoles = 7, kStack = 96 << 20, kGrowth = 8, kMostGrowths = 2000 };
// In pages: 96 MiB, and what small mappings fit into.
static const size_t sizes[kHoles] = {24576, 1024, 256, 17, 16, 2, 1};
static const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
static char *holes[kHoles], *stack;

static int take(int round) {
  for (int i = 0; i < kHoles; ++i) {
    const size_t bytes = sizes[i] * kPage;
    // Where MAP_FIXED would overwrite what has come into the hole.
    if (mmap(holes[i], bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0) != holes[i]) {
      fprintf(stderr, "something is in the hole of %zu pages at %p in round %d\n", sizes[i], (void*)holes[i],
              round);
      return 2;
    }
    for (size_t at = 0; at < bytes; at += 64 * kPage) {
      if (holes[i][at] != 0) return 3;
      holes[i][at] = (char)round;
    }
  }
  if (round <= kMostGrowths) stack -= kGrowth * kPage;
  for (int page = kGrowth - 1; page >= 0; --page) stack[page * kPage] = (char)round;
  return 0;
}

static void leave(void) {
  for (int i = 0; i < kHoles; ++i) munmap(holes[i], sizes[i] * kPage);
}

int main(int count, char** words) {
  (void)words;
  size_t all = kPage;
  for (int i = 0; i < kHoles; ++i) all += (sizes[i] + 1) * kPage;
  char* place = mmap(NULL, all + kStack, PROT_READ, flags, -1, 0);
  if (place == MAP_FAILED) return 1;
  // The kernel takes the highest gap that is large enough: none is above the holes.
  for (char* page; (page = mmap(NULL, kPage, PROT_NONE, flags, -1, 0)) > place;)
    if (page == MAP_FAILED) return 1;
  stack = place + kStack - kPage;
  munmap(place, kStack - kPage);
  if (mmap(stack, kPage, PROT_READ | PROT_WRITE, flags | MAP_GROWSDOWN | MAP_FIXED, -1, 0) == MAP_FAILED)
    return 1;
  char* at = place + kStack + kPage;  // a page stays in front of each hole
  for (int i = 0; i < kHoles; at += (sizes[i++] + 1) * kPage) holes[i] = at;
  leave();
  printf("%lx-%lx", (unsigned long)place, (unsigned long)(stack - (kRounds + 1) * kGrowth * kPage));
  for (int i = 0; i < kHoles; ++i)
    printf(" %lx-%lx", (unsigned long)holes[i], (unsigned long)(holes[i] + sizes[i] * kPage));
  puts("");
  fflush(stdout);
  char line[16];
  for (int round = 1; count > 1 && fgets(line, sizeof(line), stdin) != NULL; ++round) {
    const int r = take(round);
    if (r != 0) return r;
    leave();
    puts("ok");
    fflush(stdout);
  }
  struct pollfd input = {0, POLLIN, 0};
  for (int round = 1; count == 1 && (round <= kRounds || poll(&input, 1, 0) == 0); ++round) {
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    const int r = take(round);
    if (r != 0) return r;
    leave();
  }
  if (count == 1) puts("ok");
  return 0;
}
