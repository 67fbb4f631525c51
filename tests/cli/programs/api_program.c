/* A program that uses ckpt_rt.h, or makes a checkpoint hard to take: api, flood, reclaimed, reclaimed-pieces,
 * increments, shared, placed, growth, given-back, ring, alone, last, drop, lost, lost-child, stuck, critical,
 * exec N. Plain C: the header is for such programs. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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

#include "tests/cli/programs/api_program.h"

void fail(const char* what) {
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

void be_ready(void) {
  pthread_mutex_lock(&lock);
  ready = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

void start(void* (*body)(void*)) {
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
  raw_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8);
  be_ready();
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

struct ckpt_rt_result take(void) {
  struct ckpt_rt_result result = {.size = sizeof(result)};
  if (ckpt_rt_checkpoint(&result) != CKPT_RT_OK) fail(result.error);
  return result;
}

/* In a program that has a ring, the kernel may write to memory unseen. */
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
  /* One that has ended its work for the checkpoint may still be counted. */
  int before;
  while ((before = tasks()) > 3) sched_yield();
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
