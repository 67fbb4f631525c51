/* Memory that comes, goes, and is used again around checkpoints that the program takes itself. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cli/programs/api_program.h"

/* Memory with a guard region in it, all of which a callback overwrites before the threads go on: more than
 * the pool holds. */
enum { kFloodBytes = 24 << 20 };
static void flood(enum ckpt_rt_callback_kind kind, void* memory) {
  (void)kind;
  memset(memory, 'y', kFloodBytes);
}

void flood_api(void) {
  enum { kGuardInstall = 102 }; /* MADV_GUARD_INSTALL, Linux 6.13 */
  const size_t page = 4096;
  char* memory =
      mmap(NULL, kFloodBytes + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  memset(memory, 'x', kFloodBytes + 2 * page);
  madvise(memory + kFloodBytes, page, kGuardInstall);
  if (ckpt_rt_add_callback(CKPT_RT_AFTER_CHECKPOINT, flood, memory) != CKPT_RT_OK) fail("add");
  struct ckpt_rt_result result = {.size = sizeof(result)};
  int returned = ckpt_rt_checkpoint(&result);
  size_t old = 0, new = 0;
  for (size_t i = 0; i < kFloodBytes; ++i) {
    old += memory[i] == 'x';
    new += memory[i] == 'y';
  }
  printf("returned %d restarted %u old %zu new %zu\n", returned, ckpt_rt_restarted(), old, new);
}

/* Memory given to MADV_FREE before the checkpoint, which the kernel takes when it is protected, and that is
 * used again: in the stop it is full of 'a', and from then on a thread fills it with 'b'. It lies behind
 * other memory, so that its turn to be copied comes late. */
enum { kBeforeIt = 96 << 20, kReclaimed = 4 << 20 };
static atomic_bool stood = 0;
static size_t found = 0;
static void reclaim(enum ckpt_rt_callback_kind kind, void* memory) {
  (void)kind;
  madvise(memory, kReclaimed, MADV_PAGEOUT);
  memset(memory, 'a', kReclaimed);
  atomic_store(&stood, 1);
}
static void look(enum ckpt_rt_callback_kind kind, void* memory) {
  (void)kind;
  for (size_t i = 0; i < kReclaimed; ++i) found += ((char*)memory)[i] == 'a';
}
static void* overwrite(void* memory) {
  while (!atomic_load(&stood)) sched_yield();
  while (atomic_load(&stood)) memset(memory, 'b', kReclaimed);
  return NULL;
}

void reclaimed_api(void) {
  char* all = mmap(NULL, kBeforeIt + kReclaimed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) fail("mmap");
  char* memory = all + kBeforeIt;
  madvise(all, kBeforeIt + kReclaimed, MADV_NOHUGEPAGE);
  for (size_t i = 0; i < kBeforeIt; ++i) all[i] = (char)(i * 2654435761u >> 24);
  memset(memory, 'x', kReclaimed);
  if (madvise(memory, kReclaimed, MADV_FREE) != 0) fail("madvise");
  pthread_t thread;
  if (pthread_create(&thread, NULL, overwrite, memory) != 0) fail("pthread_create");
  if (ckpt_rt_add_callback(CKPT_RT_BEFORE_CHECKPOINT, reclaim, memory) != CKPT_RT_OK) fail("add");
  if (ckpt_rt_add_callback(CKPT_RT_AFTER_RESTART, look, memory) != CKPT_RT_OK) fail("add");
  struct ckpt_rt_result result = {.size = sizeof(result)};
  int returned = ckpt_rt_checkpoint(&result);
  printf("returned %d restarted %u as at the stop %zu\n", returned, ckpt_rt_restarted(), found);
}

/* The same between two checkpoints, in pieces, with memory in between that is written to: in the image
 * before, all is 'x'. */
enum { kPiece = 64 << 10, kPieces = 65 };
static void reclaim_pieces(enum ckpt_rt_callback_kind kind, void* memory) {
  (void)kind;
  for (int i = 0; i < kPieces; ++i) {
    char* piece = (char*)memory + i * kPiece;
    if (i % 2 != 0) madvise(piece, kPiece, MADV_PAGEOUT);
    memset(piece, 'a', kPiece);
  }
}

void reclaimed_pieces(void) {
  char* memory =
      mmap(NULL, (kPieces + 1) * kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  memory += -(uintptr_t)memory % kPiece;
  madvise(memory, kPieces * kPiece, MADV_NOHUGEPAGE);
  memset(memory, 'x', kPieces * kPiece);
  for (int i = 1; i < kPieces; i += 2) {
    if (madvise(memory + i * kPiece, kPiece, MADV_FREE) != 0) fail("madvise");
  }
  take();
  if (ckpt_rt_add_callback(CKPT_RT_BEFORE_CHECKPOINT, reclaim_pieces, memory) != CKPT_RT_OK) fail("add");
  struct ckpt_rt_result result = take();
  size_t as = 0;
  for (size_t i = 0; i < kPieces * kPiece; ++i) as += memory[i] == 'a';
  printf("restarted %u as at the stop %zu\n", result.restarted, as);
}

/* Checkpoints with a little written between them, then what memory holds. */
void increments(void) {
  enum { kPages = 4096, kPage = 4096 };
  char* memory = mmap(NULL, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  memset(memory, 'a', kPages * kPage);
  for (int i = 0; i < 4; ++i) {
    memory[i * kPage] = (char)('b' + i);
    if (i == 2) madvise(memory + 100 * kPage, 50 * kPage, MADV_DONTNEED);
    if (i == 3) memset(memory + 120 * kPage, 'z', kPage);
    struct ckpt_rt_result result = take();
    if (result.restarted != 0) {
      size_t zeros = 0, as = 0, zs = 0;
      for (size_t at = 4 * kPage; at < kPages * kPage; ++at) {
        zeros += memory[at] == 0;
        as += memory[at] == 'a';
        zs += memory[at] == 'z';
      }
      printf("image %d: %c%c%c%c zeros %zu a %zu z %zu\n", i + 1, memory[0], memory[kPage], memory[2 * kPage],
             memory[3 * kPage], zeros / kPage, as / kPage, zs / kPage);
      return;
    }
    printf("%llu ", (unsigned long long)result.bytes_memory >> 20);
  }
  printf("MiB\n");
}

/* Memory that comes and goes while checkpoints are taken, wherever the kernel puts it. */
enum { kPlaces = 512, kPlaceWords = (2 << 20) / 8 };
static uint64_t* places[kPlaces];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

static void* move_places(void* none) {
  be_ready();
  for (unsigned i = 0;; i = (i + 1) % kPlaces) {
    pthread_mutex_lock(&places_lock);
    for (unsigned at = 0; i == 0 && at < kPlaces && places[at] != NULL; ++at) {
      munmap(places[at], kPlaceWords * 8);
      places[at] = NULL;
    }
    places[i] = mmap(NULL, kPlaceWords * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    places[i][0] = places[i][kPlaceWords - 1] = (uintptr_t)places[i];
    pthread_mutex_unlock(&places_lock);
  }
  return none;
}

void placed(void) {
  start(move_places);
  for (int i = 0; i < 6; ++i) {
    const int restarted = take().restarted;
    pthread_mutex_lock(&places_lock);
    for (unsigned at = 0; at < kPlaces; ++at) {
      const uint64_t* p = places[at];
      if (p != NULL && (p[0] != (uintptr_t)p || p[kPlaceWords - 1] != (uintptr_t)p)) fail("memory is lost");
    }
    pthread_mutex_unlock(&places_lock);
    if (restarted != 0) {
      printf("image %d: all there\n", i + 1);
      return;
    }
  }
}

/* How many mappings a heap has that grows between checkpoints. */
void growth(void) {
  for (int i = 0; i < 12; ++i) {
    if (memset(sbrk(0x21000), 'h', 0x21000) == NULL) fail("sbrk");
    take();
  }
  int heaps = 0;
  char line[512];
  FILE* maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof(line), maps) != NULL) heaps += strstr(line, "[heap]") != NULL;
  printf("%d\n", heaps);
}

/* A number that says what memory holds. */
static uint64_t sum_of(const uint64_t* words, size_t bytes) {
  uint64_t sum = 1;
  for (size_t i = 0; i < bytes / sizeof(*words); ++i) sum = sum * 31 + words[i];
  return sum;
}

static _Atomic int moving = 1;
static void* move(void* memory) {
  /* In place: nothing changes for the program, but its registration goes. */
  while (moving) mremap(memory, 80 << 20, 80 << 20, 0);
  return NULL;
}

/* Shared memory that is registered ahead of the stop, and forgotten in the middle of its copy. */
void shared(void) {
  enum { kBytes = 80 << 20 };
  uint64_t* memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  for (size_t i = 0; i < kBytes / 8; i += 1024) memory[i] = i;
  pthread_t mover;
  pthread_create(&mover, NULL, move, memory);
  for (uint64_t n = 1; n <= 4; ++n) {
    for (size_t i = n * 512; i < kBytes / 8; i += 8192) memory[i] += n;
    uint64_t before = sum_of(memory, kBytes);
    struct ckpt_rt_result result = take();
    if (n == 2) {
      moving = 0;
      pthread_join(mover, NULL);
    }
    if (result.restarted != 0) {
      printf("image %llu: %s\n", (unsigned long long)n,
             sum_of(memory, kBytes) == before ? "as it was" : "different");
      return;
    }
  }
}

/* More calls that give memory back than are remembered, in memory that is not in use yet. */
void given_back(void) {
  const size_t page = 4096, room = 4ul << 30, used = 8 << 20;
  char* memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  memset(memory, 'a', used);
  for (int n = 1; n <= 3; ++n) {
    struct ckpt_rt_result result = take();
    size_t as = 0, ns = 0;
    for (size_t i = 0; i < used; ++i) {
      as += memory[i] == 'a';
      ns += memory[i] == '0' + n - 1;
    }
    if (result.restarted != 0) {
      printf("image %d: a %zu new %zu\n", n, as / page, ns / page);
      return;
    }
    for (size_t i = 0; i < 9000; ++i) madvise(memory + used + (i * 37 + 11) * page, page, MADV_DONTNEED);
    memset(memory + used / 2, '0' + n, 10 * page);
    memory[used + (size_t)n * (64 << 20)] = 'b'; /* another part of it comes into use */
  }
}
