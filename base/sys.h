// Raw system calls: no errno, no cancellation, no libc state.
//
// Owner:     base. Header only, also used by the freestanding restorer.
// Callers:   any thread, with any TLS or none, in a signal handler, while the world is stopped.
// Never:     touches libc; the result is what the kernel returned, -errno on failure.
#pragma once

#include <asm/unistd.h>

#include <cstddef>
#include <cstdint>

namespace ckpt::sys {

inline long call(long nr) {
  long ret;
  asm volatile("syscall" : "=a"(ret) : "a"(nr) : "rcx", "r11", "memory");
  return ret;
}

inline long call6(long nr, long a, long b, long c, long d, long e, long f) {
  long ret;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(ret)
               : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return ret;
}

template <typename T>
inline long as_word(T value) {
  if constexpr (sizeof(T) == 8) {
    return (long)value;
  } else {
    return static_cast<long>(value);
  }
}

// call(nr, args...): up to six arguments of any integer or pointer type.
template <typename... Args>
inline long call(long nr, Args... args) {
  static_assert(sizeof...(Args) <= 6);
  long w[6] = {as_word(args)...};
  return call6(nr, w[0], w[1], w[2], w[3], w[4], w[5]);
}

// The kernel returns errors as values in [-4095, -1].
inline bool failed(long ret) { return ret < 0 && ret >= -4095; }

inline int gettid() { return static_cast<int>(call(__NR_gettid)); }
inline int getpid() { return static_cast<int>(call(__NR_getpid)); }

}  // namespace ckpt::sys
