// Memory for bench/*_ways.cc: aligned to huge pages, and all of it touched.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

inline constexpr size_t kHugePage = 2 << 20;

// advice: MADV_HUGEPAGE or MADV_NOHUGEPAGE.
inline char* map_touched(size_t bytes, int advice) {
  void* p = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  auto* aligned =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(p) + kHugePage - 1) & ~(kHugePage - 1));
  madvise(aligned, bytes, advice);
  std::memset(aligned, 1, bytes);
  return aligned;
}
