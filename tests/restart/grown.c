/* A thread that maps memory, 4 MiB each time, writes to it and looks at it, again and again; and as many more
 * threads that wait as its input says: a line with their number is answered by it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { kBytes = 4 << 20, kRegions = 32, kMost = 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int wanted;

static void* wait_here(void* number) {
  pthread_mutex_lock(&lock);
  while ((int)(long)number < wanted) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* Now few at once, so that others' mappings come to lie among them, now so many that every hole is filled. */
static void* map_again(void* unused) {
  char* at[kRegions];
  for (int count = 1;; count = count % kRegions + 1) {
    for (int i = 0; i < count; ++i) {
      at[i] = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at[i] == MAP_FAILED) abort();
      *(void**)at[i] = at[i];
      *(void**)(at[i] + kBytes / 2) = at[i];
    }
    for (int times = 0; times < 500; ++times) {
      for (int i = 0; i < count; ++i) {
        if (*(void* volatile*)at[i] != at[i] || *(void* volatile*)(at[i] + kBytes / 2) != at[i]) abort();
      }
    }
    for (int i = 0; i < count; ++i) {
      if (munmap(at[i], kBytes) != 0) abort();
    }
  }
  return unused;
}

int main(void) {
  static pthread_t threads[kMost];
  int there = 0;
  pthread_t mapper;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  if (pthread_create(&mapper, NULL, map_again, NULL) != 0) return 1;
  puts("up");
  fflush(stdout);
  for (int number; scanf("%d", &number) == 1 && number >= 0 && number <= kMost;) {
    pthread_mutex_lock(&lock);
    wanted = number;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (; there > number; --there) pthread_join(threads[there - 1], NULL);
    for (; there < number; ++there) {
      if (pthread_create(&threads[there], &small, wait_here, (void*)(long)there) != 0) return 1;
    }
    printf("%d\n", there);
    fflush(stdout);
  }
  return 0;
}
