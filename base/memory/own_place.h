// Where memory of our own goes in a program: far from all that the kernel hands out by itself.
//
// A program may count on a hole that it has made: it unmaps a range and maps it again with MAP_FIXED, or has
// a stack that grows down into it (MAP_GROWSDOWN). The kernel would give the hole to us.
//
// No range is reserved ahead, since a reservation counts as memory of the program (RLIMIT_AS, VmSize).
//
// Owner:     base. Callers: any thread.
#pragma once

#include <errno.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>

#include "base/sys.h"
#include "base/units.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // Linux 4.17; a hint to older ones
#endif

namespace ckpt {

// Nothing of a program is there but by its own wish. Programs begin near 0x55'5555'5555'4000 or far below,
// what the kernel places itself begins near 0x7fff'0000'0000, or at 0x2aaa'0000'0000 (a stack without limit).
inline constexpr uint64_t kOwnPlaces = 0x2200'0000'0000;

// The address to try next for memory of our own: another one each time.
inline uint64_t next_own_place(uint64_t bytes) {
  // Places begin anew after a tebibyte. As far apart are those of two programs, by the address that the
  // kernel has chosen for this library.
  constexpr uint64_t kSpan = uint64_t{1} << 40, kHugePage = 2 << 20, kApart = 64 << 10;
  static constinit std::atomic<uint64_t> used{0};
  const uint64_t random = (reinterpret_cast<uint64_t>(&used) >> 12 & 0xffff) * (kSpan >> 16);
  const uint64_t align = bytes >= kHugePage ? kHugePage : kPageSize;
  const uint64_t room = ((bytes + kPageSize - 1) & ~(kPageSize - 1)) + kApart + align;
  const uint64_t at = used.fetch_add(room, std::memory_order_relaxed) % kSpan + align - 1;
  return kOwnPlaces + random + (at & ~(align - 1));
}

// mmap(2) of memory of our own, -errno on failure. flags: without an address.
inline long map_own(uint64_t bytes, int protection, int flags, int fd = -1) {
  // A program that has taken a region of the address space for itself has taken all places in it.
  constexpr uint64_t kRegion = 0x1000'0000'0000, kRegions = 3, kTries = 4;
  for (uint64_t i = 0; i < kRegions * kTries; ++i) {
    const uint64_t at = next_own_place(bytes) + i / kTries * kRegion;
    const long r =
        sys::call(__NR_mmap, at, bytes, long{protection}, long{flags | MAP_FIXED_NOREPLACE}, long{fd}, 0L);
    if (!sys::failed(r)) return r;
    if (r != -EEXIST) break;
  }
  return sys::call(__NR_mmap, 0L, bytes, long{protection}, long{flags}, long{fd}, 0L);
}

}  // namespace ckpt
