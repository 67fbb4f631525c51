#include "libckpt_rt/checkpoint/in_force.h"

#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::in_force {

namespace {
constinit Known known;
}

uint64_t next_segment() {
  return known.next_segment_bytes != 0 ? known.next_segment_bytes : user_settings().segment_bytes;
}

void set_next_segment(uint64_t bytes) { known.next_segment_bytes = bytes; }
void remember(const InForce& attempt) { known.newest = attempt; }

Settings now(const CheckpointMethod& method) {
  Settings s = user_settings();
  s.mode = method.mode;
  if (method.protects_memory()) s.faults = method.back_end;
  const InForce& newest = known.newest;
  // No attempt has got that far.
  if (newest.segment_bytes == 0) return s;
  if (s.segment_auto) {
    s.segment_auto = false;
    s.segment_bytes = next_segment();
  }
  if (newest.pool_bytes != 0) s.pool_bytes = newest.pool_bytes;
  if (!newest.increments) s.increments = 0;
  if (!newest.in_order) s.order = Order::kAddress;
  if (!newest.engine) s.dma = false;
  if (!newest.files) s.files = SavedFiles::kNone;
  return s;
}

const Known& all() { return known; }
void put_back(const Known& all) { known = all; }
void reset_in_child() { known.newest = {}; }

}  // namespace ckpt::in_force
