// Where calls went that say something of parts of memory (memory_settings.h): from the lowest to the highest
// address.
//
// Owner:     libckpt_rt, in its own data. Callers: the program's threads, in interposed calls; the agent,
//            threads standing.
// Never:     allocates, locks, touches errno.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/units.h"

namespace ckpt::memory_settings {

struct Reach {
  std::atomic<uint64_t> start{~0ull}, end{0};
  std::atomic<uint32_t> moving{0};

  // relaxed: read when the thread stands. Ahead of the call, for a stop may come right behind it.
  void extend(Addr from, size_t length) {
    const uint64_t to = from.value + length;
    // The kernel refuses what ends below where it begins, also when it has made whole pages of it.
    if (to < from.value || length > ~uint64_t{0} - kPageSize) return;
    for (uint64_t old = start.load(std::memory_order_relaxed);
         from.value < old && !start.compare_exchange_weak(old, from.value, std::memory_order_relaxed);) {
    }
    for (uint64_t old = end.load(std::memory_order_relaxed);
         to > old && !end.compare_exchange_weak(old, to, std::memory_order_relaxed);) {
    }
  }
  // Where what lies in the range goes to, nobody knows ahead of the call: until it has returned that may be
  // anywhere.
  bool begin_move(Addr from, size_t length) {
    if (common({from, from + length}).empty()) return false;
    moving.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void end_move() { moving.fetch_sub(1, std::memory_order_relaxed); }
  AddrRange common(AddrRange range) const {
    if (moving.load(std::memory_order_relaxed) != 0) return range;
    const uint64_t from = std::max(start.load(std::memory_order_relaxed), range.start.value);
    const uint64_t to =
        std::min((end.load(std::memory_order_relaxed) + kPageSize - 1) & ~(kPageSize - 1), range.end.value);
    return from < to ? AddrRange{Addr{from}.page_down(), Addr{to}} : AddrRange{};
  }
  bool empty() const { return end.load(std::memory_order_relaxed) == 0; }
};
extern constinit Reach guards_reach, policies_reach;

}  // namespace ckpt::memory_settings
