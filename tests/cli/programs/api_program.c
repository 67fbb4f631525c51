/* A program that uses ckpt_rt.h, or makes a checkpoint hard to take: api, flood, reclaimed, reclaimed-pieces,
 * increments, shared, placed, growth, given-back, ring, alone, last, drop, lost, lost-child, stuck, critical,
 * exec N. Plain C: the header is for such programs. */
#define _GNU_SOURCE
#define CKPT_RT_OPTIONAL
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "include/ckpt_rt.h"

static void fail(const char* what) {
  perror(what);
  exit(1);
}

/* Answers each line with its number until the input ends. "leave" leaves the critical section. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int may_leave = 0, left = 0, ready = 0;

static void answer_lines(void) {
  char line[64];
  int n = 0;
  puts("up");
  fflush(stdout);
  while (fgets(line, sizeof(line), stdin) != NULL) {
    if (strcmp(line, "leave\n") == 0) {
      pthread_mutex_lock(&lock);
      may_leave = 1;
      pthread_cond_broadcast(&changed);
      while (!left) pthread_cond_wait(&changed, &lock);
      pthread_mutex_unlock(&lock);
    }
    printf("%d\n", ++n);
    fflush(stdout);
  }
}

static void be_ready(void) {
  pthread_mutex_lock(&lock);
  ready = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void start(void* (*body)(void*)) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, body, NULL) != 0) fail("pthread_create");
  pthread_mutex_lock(&lock);
  while (!ready) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

/* Behind the back of every interposed function. */
static long raw_call(long nr, long a, long b, long c, long d) {
  long result;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
                   : "rcx", "r11", "memory");
  return result;
}

static void* stubborn(void* none) {
  uint64_t all = ~(uint64_t)0;
  struct timespec day = {86400, 0};
  pthread_setname_np(pthread_self(), "stubborn");
  be_ready();
  raw_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8);
  for (;;) raw_call(SYS_nanosleep, (long)&day, 0, 0, 0);
  return none;
}

static void* nothing(void* none) { return none; }

static void* critical(void* none) {
  pthread_t thread;
  if (ckpt_rt_enter_critical() != CKPT_RT_OK) fail("enter");
  be_ready();
  pthread_mutex_lock(&lock);
  while (!may_leave) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  if (pthread_create(&thread, NULL, nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
    fail("a thread in the section");
  if (ckpt_rt_leave_critical() != CKPT_RT_OK) fail("leave");
  pthread_mutex_lock(&lock);
  left = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return none;
}

static int calls[4];
static void count(enum ckpt_rt_callback_kind kind, void* context) { ((int*)context)[kind]++; }
static void never(enum ckpt_rt_callback_kind kind, void* context) {
  (void)kind;
  (void)context;
  abort();
}

static void api(void) {
  const size_t page = 4096;
  char* memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct ckpt_rt_result result = {.size = sizeof(result)}, small = {.size = 4};
  if (memory == MAP_FAILED) fail("mmap");
  memset(memory, 'x', 4 * page);
  printf("active %d restarted %u\n", ckpt_rt_is_active(), ckpt_rt_restarted());
  printf("small %d\n", ckpt_rt_checkpoint(&small));
  printf("enter %d", ckpt_rt_enter_critical());
  printf(" inside %d", ckpt_rt_checkpoint(NULL));
  printf(" leave %d", ckpt_rt_leave_critical());
  printf(" again %d\n", ckpt_rt_leave_critical());
  for (int kind = CKPT_RT_BEFORE_CHECKPOINT; kind <= CKPT_RT_AFTER_RESTART; ++kind) {
    if (ckpt_rt_add_callback(kind, count, calls) != CKPT_RT_OK) fail("add");
    if (ckpt_rt_add_callback(kind, never, NULL) != CKPT_RT_OK) fail("add");
    if (ckpt_rt_remove_callback(kind, never, NULL) != CKPT_RT_OK) fail("remove");
  }
  printf("remove again %d\n", ckpt_rt_remove_callback(CKPT_RT_AFTER_RESTART, never, NULL));
  /* Whole pages only: the second and the third; then the third comes back in. */
  if (ckpt_rt_exclude(memory + 1, 3 * page) != CKPT_RT_OK) fail("exclude");
  if (ckpt_rt_include(memory + 2 * page, 1) != CKPT_RT_OK) fail("include");
  fflush(stdout);
  int returned = ckpt_rt_checkpoint(&result);
  printf("returned %d restarted %u %u sequence %d before %d after %d restart %d memory", returned,
         result.restarted, ckpt_rt_restarted(), (int)result.sequence, calls[1], calls[2], calls[3]);
  for (int i = 0; i < 4; ++i) printf(" %d", memory[(size_t)i * page]);
  printf(" error '%s'\n", result.error);
}

/* Memory with a guard region in it, all of which a callback overwrites before the threads go on: more than
 * the pool holds. */
enum { kFloodBytes = 24 << 20 };
static void flood(enum ckpt_rt_callback_kind kind, void* memory) {
  (void)kind;
  memset(memory, 'y', kFloodBytes);
}

static void flood_api(void) {
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

static void reclaimed_api(void) {
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

static struct ckpt_rt_result take(void) {
  struct ckpt_rt_result result = {.size = sizeof(result)};
  if (ckpt_rt_checkpoint(&result) != CKPT_RT_OK) fail(result.error);
  return result;
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

static void reclaimed_pieces(void) {
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
static void increments(void) {
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

static void placed(void) {
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
static void growth(void) {
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
static void shared(void) {
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
static void given_back(void) {
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

/* Who has a ring may have memory written to by the kernel, unseen. */
static void ring(void) {
  struct io_uring_params parameters = {0};
  int fd = (int)syscall(SYS_io_uring_setup, 4, &parameters);
  if (fd < 0) {
    printf("no rings here\n");
    return;
  }
  if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING) == MAP_FAILED)
    fail("mmap");
  for (int i = 0; i < 3; ++i) take();
}

/* Descriptors that no image has. */
static void* has_descriptors_of_its_own(void* none) {
  if (unshare(CLONE_FILES) != 0) fail("unshare");
  be_ready();
  for (;;) pause();
  return none;
}

/* A checkpoint that can be restarted, and one that cannot: for what this process does, or a child. */
static void lost(int in_child) {
  take();
  if (!in_child) {
    start(has_descriptors_of_its_own);
  } else {
    int up[2];
    char byte;
    if (pipe(up) != 0) fail("pipe");
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      start(has_descriptors_of_its_own);
      if (write(up[1], "", 1) != 1) fail("write");
      for (;;) pause();
    }
    if (read(up[0], &byte, 1) != 1) fail("read");
  }
  struct ckpt_rt_result result = {.size = sizeof(result)};
  int returned = ckpt_rt_checkpoint(&result);
  printf("returned %d sequence %d error %s\n", returned, (int)result.sequence, result.error);
  answer_lines();
}

static int tasks(void) {
  struct stat status;
  return stat("/proc/self/task", &status) == 0 ? (int)status.st_nlink - 2 : -1;
}

/* A call that only a process of one thread may make. */
static void alone(void) {
  take();
  int before = tasks();
  int entered = unshare(CLONE_NEWUSER);
  printf("%d threads, then unshare %s, %d thread\n", before, entered == 0 ? "worked" : strerror(errno),
         tasks());
}

/* Rights that were given up are not used by anybody on our behalf. */
static void drop(void) {
  take();
  if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) fail("setresuid");
  struct ckpt_rt_result result = {.size = sizeof(result)};
  printf("returned %d\n", ckpt_rt_checkpoint(&result));
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (strcmp(argv[1], "api") == 0) {
    api();
  } else if (strcmp(argv[1], "flood") == 0) {
    flood_api();
  } else if (strcmp(argv[1], "reclaimed") == 0) {
    reclaimed_api();
  } else if (strcmp(argv[1], "reclaimed-pieces") == 0) {
    reclaimed_pieces();
  } else if (strcmp(argv[1], "increments") == 0) {
    increments();
  } else if (strcmp(argv[1], "placed") == 0) {
    placed();
  } else if (strcmp(argv[1], "growth") == 0) {
    growth();
  } else if (strcmp(argv[1], "shared") == 0) {
    shared();
  } else if (strcmp(argv[1], "given-back") == 0) {
    given_back();
  } else if (strcmp(argv[1], "ring") == 0) {
    ring();
  } else if (strcmp(argv[1], "alone") == 0) {
    alone();
  } else if (strcmp(argv[1], "last") == 0) {
    take();
    syscall(SYS_exit, 7); /* of the only thread: no exit_group */
  } else if (strcmp(argv[1], "drop") == 0) {
    drop();
  } else if (strcmp(argv[1], "lost") == 0) {
    lost(0);
  } else if (strcmp(argv[1], "lost-child") == 0) {
    lost(1);
  } else if (strcmp(argv[1], "stuck") == 0) {
    start(stubborn);
    answer_lines();
  } else if (strcmp(argv[1], "critical") == 0) {
    start(critical);
    answer_lines();
  } else if (strcmp(argv[1], "exec") == 0 && argc == 3) {
    int left_to_do = atoi(argv[2]);
    if (left_to_do > 0) {
      char text[16];
      snprintf(text, sizeof(text), "%d", left_to_do - 1);
      argv[2] = text;
      execv("/proc/self/exe", argv);
      fail("exec");
    }
    answer_lines();
  } else {
    return 2;
  }
  return 0;
}
