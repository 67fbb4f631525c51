#include "libckpt_rt/core/threads/own_rseq.h"

#include <atomic>

#include "base/large_table.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_rseq {
namespace {

struct Place {
  std::atomic<uint64_t> thread_pointer{0};  // 0: free
  Area area;                                // only that thread's
};
CKPT_LARGE_TABLE Place places[kMost];

// The place of that thread; nullptr: none. take: a free one becomes its own.
Place* place_of(uint64_t thread_pointer, bool take) {
  const uint64_t hash = (thread_pointer >> 6) * 0x9e3779b97f4a7c15u >> 32;
  for (uint32_t i = 0; i < kMost; ++i) {
    Place& place = places[(hash + i) % kMost];
    // relaxed: what is behind it is read by the thread that wrote it.
    uint64_t owner = place.thread_pointer.load(std::memory_order_relaxed);
    if (owner == thread_pointer) return &place;
    if (owner != 0) continue;
    if (!take) return nullptr;
    if (place.thread_pointer.compare_exchange_strong(owner, thread_pointer, std::memory_order_relaxed))
      return &place;
  }
  return nullptr;
}

}  // namespace

void note(uint64_t thread_pointer, const Area& area) {
  Place* place = place_of(thread_pointer, area.address != 0);
  if (place == nullptr) return;
  // A stop may come between: then there is none.
  place->area.address = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  place->area.length = area.length;
  place->area.signature = area.signature;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  place->area.address = area.address;
}

Area find(uint64_t thread_pointer) {
  const Place* place = place_of(thread_pointer, false);
  return place == nullptr ? Area{} : place->area;
}

}  // namespace ckpt::own_rseq
