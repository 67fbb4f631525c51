// A tree of processes with shared anonymous memory, of which each knows what must be in it.
//
//   shared_once HOW MIB
//
// It makes a file "up" in its directory, waits for a file "stop", and prints "ok", or how many words are
// wrong. HOW says:
//
// - all: the first process and three children map all of it, and each writes a quarter. When a file "write"
//   is there, the last child writes other words to the first quarter, and makes a file "written". Likewise
//   with "again", where it maps all a second time and writes there, "moves" (mremap), "unmaps" (a half).
// - sysv: as all, with a segment of System V.
// - halves: two processes; each has unmapped one half, the other one's.
// - unmaps: as halves, but the first process has all of it until there is a file "unmap". Then it unmaps its
//   half, and makes a file "unmapped".
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t* words;
static size_t count;

static uint64_t word(size_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; }

static void fill(size_t from, size_t to, uint64_t with) {
  for (size_t i = from; i < to; ++i) words[i] = word(i) ^ with;
}

static size_t wrong(size_t from, size_t to) {
  size_t bad = 0;
  for (size_t i = from; i < to; ++i) bad += words[i] != word(i);
  return bad;
}

static void await_file(const char* name) {
  while (access(name, F_OK) != 0) usleep(5000);
}

static void make_file(const char* name) {
  FILE* f = fopen(name, "w");
  if (f != NULL) fclose(f);
}

// To what was written by the first process, in one of four ways.
static void write_when_told(size_t part) {
  const size_t bytes = count * sizeof(*words);
  for (; access("stop", F_OK) != 0; usleep(5000)) {
    if (access("written", F_OK) == 0) continue;
    uint64_t* to = words;
    if (access("again", F_OK) == 0)
      to = mremap(words, 0, bytes, MREMAP_MAYMOVE);
    else if (access("moves", F_OK) == 0)
      to = words = mremap(words, bytes, bytes + 4096, MREMAP_MAYMOVE);
    else if (access("unmaps", F_OK) == 0)
      munmap((char*)words + bytes / 2, bytes / 2);
    else if (access("write", F_OK) != 0)
      continue;
    for (size_t i = 0; to != MAP_FAILED && i < part; ++i) to[i] = word(i) ^ 1;
    make_file("written");
  }
}

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const size_t bytes = strtoul(argv[2], NULL, 10) << 20;
  count = bytes / sizeof(*words);
  const int sysv = strcmp(argv[1], "sysv") == 0;
  const int segment = sysv ? shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600) : -1;
  if (sysv) {
    words = shmat(segment, NULL, 0);
    shmctl(segment, IPC_RMID, NULL);
  } else {
    words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  if (words == MAP_FAILED) return 71;
  const int all = sysv || strcmp(argv[1], "all") == 0, unmaps = strcmp(argv[1], "unmaps") == 0,
            parts = all ? 4 : 2;
  int ready[2];
  if (pipe(ready) != 0) return 71;
  int self = 0;
  for (int i = 1; i < parts && self == 0; ++i) {
    if (fork() == 0) self = i;
  }
  const size_t part = count / parts, from = self * part, to = from + part;
  fill(from, to, 0);
  if (self == 1 && !all)
    munmap(words, bytes / 2);
  else if (!all && !unmaps)
    munmap(words + part, bytes / 2);
  if (write(ready[1], "", 1) != 1) return 74;
  if (self == 0) {
    char got[4];
    for (int i = 0; i < parts; ++i) {
      if (read(ready[0], got, 1) != 1) return 74;
    }
    make_file("up");
  }
  if (all && self == 3) write_when_told(part);
  if (self == 0 && unmaps) {
    await_file("unmap");
    munmap(words, bytes / 2);
    make_file("unmapped");
  }
  await_file("stop");
  const size_t bad = all ? wrong(0, count) : self == 0 && unmaps ? wrong(to, count) : wrong(from, to);
  if (self != 0) _exit(bad != 0);
  size_t failed = bad != 0;
  for (int status; wait(&status) > 0;) failed += status != 0;
  if (failed == 0)
    puts("ok");
  else
    printf("%zu words are wrong here, %zu processes say so\n", bad, failed);
  return failed != 0;
}
