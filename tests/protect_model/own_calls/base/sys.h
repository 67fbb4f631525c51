// In place of base/sys.h in the programs of this folder that take sources of the library as they are: each
// system call of theirs comes to call6() of the test, which answers it or makes it.
#pragma once

#include <asm/unistd.h>

#include <cstddef>
#include <cstdint>

namespace ckpt::sys {

long call6(long nr, long a, long b, long c, long d, long e, long f);

template <typename T>
inline long as_word(T value) {
  if constexpr (sizeof(T) == 8) {
    return (long)value;
  } else {
    return static_cast<long>(value);
  }
}

template <typename... Args>
inline long call(long nr, Args... args) {
  static_assert(sizeof...(Args) <= 6);
  long w[6] = {as_word(args)...};
  return call6(nr, w[0], w[1], w[2], w[3], w[4], w[5]);
}
inline long call(long nr) { return call6(nr, 0, 0, 0, 0, 0, 0); }

inline bool failed(long ret) { return ret < 0 && ret >= -4095; }

inline int gettid() { return static_cast<int>(call(__NR_gettid)); }
inline int getpid() { return static_cast<int>(call(__NR_getpid)); }

}  // namespace ckpt::sys
