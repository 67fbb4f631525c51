/* A program for which faults cannot be handled by the thread that writes, for one reason or another:
 * callback, ring, sigsys, rseq (with GLIBC_TUNABLES=glibc.pthread.rseq=0), mappings. Answers each line with
 * their number. */
#define _GNU_SOURCE
#define CKPT_RT_OPTIONAL
#include <errno.h>
#include <linux/io_uring.h>
#include <linux/rseq.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "include/ckpt_rt.h"

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int calls = 0;
static void count(enum ckpt_rt_callback_kind kind, void* context) {
  (void)kind;
  ++*(int*)context;
}

static void on_sigsys(int signal) { (void)signal; }

static struct rseq area __attribute__((aligned(32)));

static void make_unfit(const char* way) {
  if (strcmp(way, "callback") == 0) {
    if (ckpt_rt_add_callback(CKPT_RT_AFTER_CHECKPOINT, count, &calls) != CKPT_RT_OK)
      fail("ckpt_rt_add_callback");
  } else if (strcmp(way, "ring") == 0) {
    struct io_uring_params parameters = {0};
    int fd = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    if (fd < 0) exit(77);
    if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING) == MAP_FAILED)
      fail("mmap");
  } else if (strcmp(way, "sigsys") == 0) {
    signal(SIGSYS, on_sigsys);
  } else if (strcmp(way, "rseq") == 0) {
    /* By an instruction of its own: of what libc's syscall() registers the library knows. */
    register long signature __asm__("r10") = 0x1234;
    long r;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"((long)SYS_rseq), "D"(&area), "S"(sizeof(area)), "d"(0L), "r"(signature)
                     : "rcx", "r11", "memory");
    if (r != 0) fail("rseq");
  } else if (strcmp(way, "mappings") == 0) {
    /* Pages far enough from one another to be segments of their own, each a mapping. */
    const size_t step = 1 << 16, count = 16000;
    char* memory = mmap(NULL, step * count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    for (size_t i = 0; i < count; ++i) {
      if (mprotect(memory + i * step, 4096, PROT_READ | PROT_WRITE) != 0) fail("mprotect");
      memory[i * step] = 'x';
    }
  } else {
    exit(2);
  }
}

int main(int argc, char** argv) {
  char line[64];
  int n = 0;
  if (argc != 2) return 2;
  make_unfit(argv[1]);
  puts("up");
  fflush(stdout);
  while (fgets(line, sizeof(line), stdin) != NULL) {
    printf("%d\n", ++n);
    fflush(stdout);
  }
  return 0;
}
