/* Thousands of mappings of a few pages that adjoin, with holes among them: some can be written, some only be
 * read, some are nobody's. A thread writes to each page that can be written, in order, round after round, and
 * finds there what it wrote the round before. A line of input is answered by "good" when a whole round
 * more is over and all other pages hold what they held at first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { kPage = 4096, kMappings = 3000, kMostPages = 5 };

struct Mapping {
  char* at;
  int pages, protection;
};
static struct Mapping all[kMappings];
static _Atomic uint64_t round_now;

static uint64_t* word(const struct Mapping* m, int page, int i) {
  return (uint64_t*)(m->at + (size_t)page * kPage) + i;
}

static void* write_rounds(void* unused) {
  for (uint64_t round = 1;; ++round) {
    for (int i = 0; i < kMappings; ++i) {
      for (int page = 0; all[i].protection == (PROT_READ | PROT_WRITE) && page < all[i].pages; ++page) {
        if (*word(&all[i], page, 1) != round - 1) abort();
        *word(&all[i], page, 1) = round;
      }
    }
    round_now = round;
  }
  return unused;
}

/* NULL, or what is wrong. */
static const char* look(void) {
  for (int i = 0; i < kMappings; ++i) {
    if ((all[i].protection & PROT_READ) == 0) continue;
    for (int page = 0; page < all[i].pages; ++page) {
      if (*word(&all[i], page, 0) != (uintptr_t)word(&all[i], page, 0)) return "a page is another's";
      if (all[i].protection == PROT_READ && *word(&all[i], page, 1) != 7)
        return "a page that is only read differs";
    }
  }
  return NULL;
}

int main(void) {
  static const int kProtections[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE};
  char* at = mmap(NULL, (size_t)kMappings * (kMostPages + 1) * kPage, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return 1;
  for (int i = 0; i < kMappings; ++i) {
    struct Mapping* m = &all[i];
    *m = (struct Mapping){at, 1 + i % kMostPages, kProtections[i * 7 % 11 % 4]};
    at += (size_t)m->pages * kPage;
    for (int page = 0; page < m->pages; ++page) {
      *word(m, page, 0) = (uintptr_t)word(m, page, 0);
      if (m->protection == PROT_READ) *word(m, page, 1) = 7;
    }
    if (mprotect(m->at, (size_t)m->pages * kPage, m->protection) != 0) return 1;
    if (i % 13 == 0) {
      if (munmap(at, kPage) != 0) return 1;
      at += kPage;
    }
  }
  pthread_t writer;
  if (pthread_create(&writer, NULL, write_rounds, NULL) != 0) return 1;
  puts("up");
  fflush(stdout);
  const struct timespec moment = {0, 1000000};
  for (char line[16]; fgets(line, sizeof(line), stdin) != NULL;) {
    for (const uint64_t before = round_now; round_now < before + 2;) nanosleep(&moment, NULL);
    const char* wrong = look();
    puts(wrong == NULL ? "good" : wrong);
    fflush(stdout);
  }
  return 0;
}
