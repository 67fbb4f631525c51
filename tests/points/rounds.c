/* The program that points.py kills: threads that write all over their memory, in rounds, and know at every
 * instant what each cell must hold. It ends when the file `end` is there, having looked at all of it: what it
 * prints is always the same. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kThreads = 2, kCells = 96 << 10 };

struct worker {
  /* Cells below `at` are of round `round`, the others of the one before. */
  uint64_t cells[kCells];
  uint64_t round, at, wrong;
};

static atomic_int over;

static uint64_t expected(uint64_t round, uint64_t cell) {
  return (round * 0x9e3779b97f4a7c15u) ^ (cell * 0xc2b2ae3d27d4eb4fu);
}

static void* work(void* argument) {
  struct worker* w = argument;
  for (w->round = 1; !atomic_load_explicit(&over, memory_order_relaxed); ++w->round) {
    for (w->at = 0; w->at < kCells; ++w->at) {
      if (w->cells[w->at] != expected(w->round - 1, w->at)) ++w->wrong;
      w->cells[w->at] = expected(w->round, w->at);
    }
  }
  for (uint64_t i = 0; i < kCells; ++i) {
    if (w->cells[i] != expected(w->round - 1, i)) ++w->wrong;
  }
  return NULL;
}

int main(void) {
  pthread_t threads[kThreads];
  struct worker* workers =
      mmap(NULL, kThreads * sizeof(*workers), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (workers == MAP_FAILED) return 1;
  for (int t = 0; t < kThreads; ++t) {
    for (uint64_t i = 0; i < kCells; ++i) workers[t].cells[i] = expected(0, i);
    if (pthread_create(&threads[t], NULL, work, &workers[t]) != 0) return 1;
  }
  printf("up\n");
  fflush(stdout);
  while (access("end", F_OK) != 0) usleep(2000);
  atomic_store(&over, 1);
  uint64_t wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    if (pthread_join(threads[t], NULL) != 0) return 1;
    wrong += workers[t].wrong;
  }
  printf("%d threads, %d cells each, %lu wrong\n", kThreads, kCells, (unsigned long)wrong);
  return wrong == 0 ? 0 : 2;
}
