// What a watch knows between two checkpoints: memory that nobody has written to since the last (arming.h).
#include "libckpt_rt/protect/arming.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> Arming::list_unwritten(bool sure, ArenaVector<AddrRange>& unwritten) {
  if (sure) {
    // With the threads standing no call is under way: what was announced has been taken away.
    auto found = check();
    if (!found.ok()) return found.error();
  }
  ArmedMemory::Serving serving(protection_);
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    const Segment& s = table_[id];
    if (!s.in_parent || s.open || table_.state(id) != SegmentState::kProtected) continue;
    const AddrRange window = table_.window(s);
    if (!unwritten.empty() && unwritten.back().end == window.start)
      unwritten.back().end = window.end;
    else if (!unwritten.push_back(window))
      return no_memory_for_segments();
  }
  return {};
}

}  // namespace ckpt
