#include "libckpt_rt/checkpoint/stages/workspace.h"

#include <sys/mman.h>

#include "base/sys.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> Workspace::reserve(uint64_t bytes) {
  if (!arena_.reserve(bytes)) return no_memory("the checkpoint's lists");
  own_ = ArenaVector<AddrRange>(arena_);
  notes_ = ArenaVector<NoteLine>(arena_);
  return {};
}

void Workspace::disown(Arena& arena) {
  for (size_t i = own_.size(); i-- > 0;) {
    if (own_[i].start != arena.range().start) continue;
    own_[i] = own_.back();
    own_.truncate(own_.size() - 1);
  }
  arena.release();
}

void Workspace::note(uint32_t severity, const char* text) {
  log_line(log(), text);
  // Without room for it the line is in the log alone.
  [[maybe_unused]] const bool added = notes_.push_back({severity, text});
}

void keep_from_children(AddrRange range) {
  sys::call(__NR_madvise, range.start.value, range.size(), MADV_DONTFORK);
}

}  // namespace ckpt
