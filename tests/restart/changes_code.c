// Changes page after page of a file's private mapping, with system calls that no library sees. The mapping is
// read-only but for the instant of a change. When there is a file `end` it changes a few more: all that was
// changed must be so then, and nothing else. The last page waits for that file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kPages = 8192, kPage = 4096, kMore = 100 };

static long protect(char* at, long size, long how) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(SYS_mprotect), "D"(at), "S"(size), "d"(how)
                   : "rcx", "r11", "memory");
  return result;
}

int main(void) {
  const int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)kPages * kPage) != 0) return 2;
  char* code = mmap(NULL, (size_t)kPages * kPage, PROT_READ, MAP_PRIVATE, fd, 0);
  if (code == MAP_FAILED) return 2;
  puts("up");
  fflush(stdout);
  const struct timespec between = {0, 100000};
  static volatile long changed, more;
  while (changed < kPages && more < kMore) {
    if (protect(code, (long)kPages * kPage, PROT_READ | PROT_WRITE) != 0) return 2;
    *(volatile long*)(code + changed * kPage) = changed + 1;
    if (protect(code, (long)kPages * kPage, PROT_READ) != 0) return 2;
    ++changed;
    while (access("end", F_OK) != 0) {
      nanosleep(&between, NULL);
      if (changed < kPages - 1) break;
    }
    more += access("end", F_OK) == 0;
  }
  long wrong = 0;
  for (long i = 0; i < kPages; ++i) wrong += *(long*)(code + i * kPage) != (i < changed ? i + 1 : 0);
  printf("wrong %ld\n", wrong);
  return wrong != 0;
}
