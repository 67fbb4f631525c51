// Memory that an argument of a system call points to, where this library reads or writes it in the kernel's
// place. The kernel answers EFAULT to a wrong address, and leaves a timeout in read-only memory alone; an
// access of ours would end the program.
//
// Owner:     interposition. Header only. Callers: threads of the program, in interposed calls.
// How:       by rt_sigprocmask(2), which copies its arguments before it looks at `how`, and changes nothing
//            by a `how` that does not exist. Filters of system calls let it through; process_vm_readv(2),
//            which would do, many do not.
// Never:     touches errno.
#pragma once

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/sys.h"
#include "base/units.h"

namespace ckpt::program_memory {

inline constexpr int kNoSuchHow = -1;

inline bool may_read_page_of(uintptr_t address) {
  // No system call for the page on which this thread works.
  if ((address ^ reinterpret_cast<uintptr_t>(__builtin_frame_address(0))) < kPageSize) return true;
  const uintptr_t word = address & ~uintptr_t{7};
  return word != 0 && sys::call(__NR_rt_sigprocmask, kNoSuchHow, word, 0L, 8L) != -EFAULT;
}

inline bool may_read(const void* from, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(from);
  uintptr_t end = 0;
  if (bytes == 0) return true;
  if (__builtin_add_overflow(first, bytes, &end)) return false;
  for (uintptr_t at = first; at < end; at = (at & ~(kPageSize - 1)) + kPageSize) {
    if (!may_read_page_of(at)) return false;
  }
  return true;
}

template <typename T>
bool read(T& to, const void* from) {
  if (!may_read(from, sizeof(T))) return false;
  std::memcpy(&to, from, sizeof(T));
  return true;
}

// False: nothing was written that the program could read.
template <typename T>
bool write(void* to, const T& value) {
  static_assert(sizeof(T) >= 8);
  const auto first = reinterpret_cast<uintptr_t>(to);
  // The kernel writes the mask there, and that is written over.
  for (uintptr_t at : {first, first + sizeof(T) - 8}) {
    if (at == 0 || sys::call(__NR_rt_sigprocmask, SIG_BLOCK, 0L, at, 8L) == -EFAULT) return false;
  }
  std::memcpy(to, &value, sizeof(T));
  return true;
}

}  // namespace ckpt::program_memory
