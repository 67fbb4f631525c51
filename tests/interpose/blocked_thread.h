// A thread of a test that blocks in a system call, and certainty that it does.
//
// Owner: tests/interpose.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "tests/interpose/stop_alone.h"

namespace ckpt::test {

inline int64_t now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec ts{};
  clock_gettime(clock, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}
inline timespec spec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

// Number of the system call that the thread sleeps in, as the kernel sees it; -1 if it runs.
inline long sleeping_in(pid_t tid) {
  char path[64], text[128] = {};
  snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  return n <= 0 || text[0] == 'r' || text[0] == '-' ? -1 : atol(text);
}

inline void wait_until_sleeping_in(pid_t tid, long nr) {
  while (sleeping_in(tid) != nr) sched_yield();
}

inline void spin(int64_t ns) {
  int64_t until = now() + ns;
  while (now() < until) {
  }
}

}  // namespace ckpt::test
