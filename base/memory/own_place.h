// Where memory of our own goes in a program: far from all that the kernel hands out by itself.
//
// A program may count on a hole that it has made: it unmaps a range and maps it again with MAP_FIXED, or has
// a stack that grows down into it (MAP_GROWSDOWN). The kernel would give the hole to us.
//
// Owner:     base. Callers: any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/units.h"

namespace ckpt {

// An address to ask the kernel for, another at each call: a hint, not MAP_FIXED. Where it is taken, the
// kernel maps where it likes.
inline uint64_t own_place(uint64_t bytes) {
  // Nothing of a program is there but by its own wish: programs and their heaps begin near 0x5555'5555'4000,
  // and the kernel hands out downwards from 0x7fff'ffff'f000. The places go around after a tebibyte. The
  // first one follows from the address that the kernel has chosen for this library.
  constexpr uint64_t kFirst = 0x2200'0000'0000, kSpan = uint64_t{1} << 40, kApart = 4 << 20;
  static constinit std::atomic<uint64_t> used{0};
  const uint64_t random = (reinterpret_cast<uint64_t>(&used) >> 12 & 0xffff) * (kSpan >> 16);
  const uint64_t whole = (bytes + 2 * kApart - 1) & ~(kApart - 1);
  return kFirst + (random + used.fetch_add(whole, std::memory_order_relaxed) % kSpan);
}

}  // namespace ckpt
