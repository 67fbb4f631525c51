#include "libckpt_rt/checkpoint/in_force.h"

#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::in_force {

namespace {
constinit Kept kept;
}

uint64_t next_segment() {
  return kept.next_segment_bytes != 0 ? kept.next_segment_bytes : user_settings().segment_bytes;
}

void set_next_segment(uint64_t bytes) { kept.next_segment_bytes = bytes; }
void remember(const InForce& attempt) { kept.newest = attempt; }

Settings now(const Way& way) {
  Settings s = user_settings();
  s.mode = way.mode;
  if (way.protects_memory()) s.faults = way.back_end;
  const InForce& newest = kept.newest;
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
  if (!newest.files) s.files = KeptFiles::kNone;
  return s;
}

const Kept& all() { return kept; }
void put_back(const Kept& all) { kept = all; }
void reset_in_child() { kept.newest = {}; }

}  // namespace ckpt::in_force
