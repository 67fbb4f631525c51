#include "libckpt_rt/capture/advice/excluded_memory.h"

#include "base/locks/futex.h"
#include "base/memory/large_table.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::excluded_memory {

namespace {

constexpr uint32_t kMost = 1024;
// Only threads of the program take the lock, with no other held. The agent reads without it while they stand,
// perhaps in the middle of a change: so a new entry is written before `count` says that it is there.
constinit FutexLock<LockRank::kExcludedMemory> lock;
CKPT_LARGE_TABLE constinit AddrRange ranges[kMost];
constinit std::atomic<uint32_t> count{0};

bool add_locked(AddrRange r) {
  uint32_t n = count.load(std::memory_order_relaxed);
  if (r.empty()) return true;
  if (n == kMost) return false;
  ranges[n] = r;
  count.store(n + 1, std::memory_order_release);
  return true;
}

// Takes `pages` out of every range; what is left of a range on both sides stays.
bool remove_locked(AddrRange pages) {
  for (uint32_t i = 0; i < count.load(std::memory_order_relaxed);) {
    AddrRange r = ranges[i];
    if (!r.overlaps(pages)) {
      ++i;
      continue;
    }
    AddrRange left{r.start, pages.start < r.end ? pages.start : r.end};
    AddrRange right{pages.end > r.start ? pages.end : r.start, r.end};
    if (!left.empty()) {
      if (!right.empty() && !add_locked(right)) return false;
      ranges[i] = left;
      ++i;
    } else if (!right.empty()) {
      ranges[i] = right;
      ++i;
    } else {
      uint32_t last = count.load(std::memory_order_relaxed) - 1;
      ranges[i] = ranges[last];
      count.store(last, std::memory_order_release);
    }
  }
  return true;
}

}  // namespace

bool exclude(AddrRange pages) {
  ScopedLock guard(lock);
  return remove_locked(pages) && add_locked(pages);
}

bool include(AddrRange pages) {
  ScopedLock guard(lock);
  return remove_locked(pages);
}

AddrRange next_excluded(AddrRange run) {
  AddrRange first{};
  for (uint32_t i = 0; i < count.load(std::memory_order_acquire); ++i) {
    AddrRange r = ranges[i];
    if (!r.overlaps(run)) continue;
    if (r.start < run.start) r.start = run.start;
    if (r.end > run.end) r.end = run.end;
    if (first.empty() || r.start < first.start) first = r;
  }
  return first;
}

}  // namespace ckpt::excluded_memory
