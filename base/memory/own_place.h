// Where memory of our own goes in a program: far from all that the kernel hands out by itself.
//
// A program may count on a hole that it has made: it unmaps a range and maps it again with MAP_FIXED, or has
// a stack that grows down into it (MAP_GROWSDOWN). The kernel would give the hole to us.
//
// No range is reserved ahead, since a reservation counts as memory of the program (RLIMIT_AS, VmSize).
//
// Owner:     base. Callers: any thread.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

#include "base/sys.h"
#include "base/units.h"

namespace ckpt {

// Nothing of a program is there but by its own wish. Programs begin near 0x5555'5555'4000 or far below, what
// the kernel places itself ends below 0x7fff'0000'0000, or begins at 0x2aaa'0000'0000 (a stack without
// limit). In a list of mappings the program comes first, as many expect.
inline constexpr uint64_t kOwnPlaces = 0x6800'0000'0000;
// Where a program has taken that region for itself.
inline constexpr uint64_t kOtherPlaces[] = {0x3200'0000'0000, 0x2200'0000'0000};

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

// mmap(2) of memory of our own, -errno on failure. flags: without an address. The place is a hint, not
// MAP_FIXED_NOREPLACE: a seccomp filter may know all flags that are usual, and kill for another.
inline long map_own(uint64_t bytes, int protection, int flags, int fd = -1) {
  constexpr int kTries = 4;  // in each region
  auto map_at = [&](uint64_t at) {
    return sys::call(__NR_mmap, at, bytes, long{protection}, long{flags}, long{fd}, 0L);
  };
#if defined(__SANITIZE_THREAD__)
  return map_at(0);  // it has shadow memory for the places of ordinary programs alone
#endif
  for (const uint64_t region : {kOwnPlaces, kOtherPlaces[0], kOtherPlaces[1]}) {
    for (int i = 0; i < kTries; ++i) {
      const uint64_t at = next_own_place(bytes) - kOwnPlaces + region;
      const long r = map_at(at);
      if (sys::failed(r) || static_cast<uint64_t>(r) == at) return r;
      sys::call(__NR_munmap, r, bytes);  // something is there, and the kernel has taken another place
    }
  }
  return map_at(0);
}

}  // namespace ckpt
