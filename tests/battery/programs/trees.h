// Parents and children of the battery: a child that ends with its function, what it must end with, whole
// reads and writes of pipes.
#ifndef TESTS_BATTERY_TREES_H_
#define TESTS_BATTERY_TREES_H_
#include "battery.h"

static inline pid_t child_of(void (*run)(int), int argument) {
  pid_t pid = fork();
  MUST(pid >= 0);
  if (pid == 0) run(argument), _exit(0);
  return pid;
}
static inline void ends_with(pid_t pid, int status) {
  int is;
  pid_t r;
  while ((r = waitpid(pid, &is, 0)) < 0 && errno == EINTR) {
  }
  MUST(r == pid && is == status);
}
static inline void get(int fd, void* p, size_t size) {
  for (size_t at = 0; at < size;) {
    ssize_t r = read(fd, (char*)p + at, size - at);
    MUST(r > 0 || (r < 0 && errno == EINTR));
    if (r > 0) at += (size_t)r;
  }
}
static inline void put(int fd, const void* p, size_t size) { MUST(write(fd, p, size) == (ssize_t)size); }
#endif
