#include "libckpt_rt/core/threads/own_rseq.h"

#include <atomic>

#include "base/memory/large_table.h"
#include "libckpt_rt/core/threads/thread_places.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_rseq {
namespace {

struct Place {
  std::atomic<uint64_t> thread_pointer{0};  // 0: free
  Area area;                                // only that thread's
};
CKPT_LARGE_TABLE constinit Place places[kMost]{};

}  // namespace

void note(uint64_t thread_pointer, const Area& area) {
  Place* place = place_of_thread(places, thread_pointer, area.address != 0);
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
  const Place* place = place_of_thread(places, thread_pointer, false);
  return place == nullptr ? Area{} : place->area;
}

}  // namespace ckpt::own_rseq
