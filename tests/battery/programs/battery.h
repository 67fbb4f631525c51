// What the programs of the battery have in common. A program says a line at each step, verifies its state
// behind it, and ends with "ok".
#ifndef TESTS_BATTERY_H_
#define TESTS_BATTERY_H_
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEPS 70

static inline void say(const char* format, ...) {
  char line[512];
  va_list list;
  va_start(list, format);
  int length = vsnprintf(line, sizeof line - 1, format, list);
  va_end(list);
  line[length] = '\n';
  if (write(1, line, length + 1) != length + 1) _exit(3);
}

static inline void fail(const char* file, int line, const char* what) {
  say("FAILED %s:%d: %s (%s)", file, line, what, strerror(errno));
  _exit(1);
}
#define MUST(x) ((x) ? (void)0 : fail(__FILE__, __LINE__, #x))

static inline void rest_ms(int ms) {
  struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

static inline double now_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static inline int step_of(int n) {
  if (n >= STEPS) return 0;
  say("%d", n);
  rest_ms(30);
  return 1;
}
#define EACH_STEP(n) for (int n = 0; step_of(n); n++)

static inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x45d9f3bu;
  x = (x ^ (x >> 16)) * 0x45d9f3bu;
  return x ^ (x >> 16);
}

struct program {
  const char* name;
  void (*run)(void);
};
#define P(name) \
  { #name, name }
#define PROGRAMS(...)                                                     \
  static const struct program programs[] = {__VA_ARGS__};                 \
  int main(int count, char** words) {                                     \
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++) {   \
      if (count < 2) printf("%s\n", programs[i].name);                    \
      if (count < 2 || strcmp(words[1], programs[i].name) != 0) continue; \
      programs[i].run();                                                  \
      say("ok");                                                          \
      return 0;                                                           \
    }                                                                     \
    return count < 2 ? 0 : 64;                                            \
  }
#endif
