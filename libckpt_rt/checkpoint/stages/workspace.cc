#include "libckpt_rt/checkpoint/stages/workspace.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/sys.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
constexpr uint64_t kMostTouched = 2 << 20;  // bytes of lists that are left to the next checkpoint
}

Workspace::~Workspace() {
  if (heir_ == nullptr) return;
  AddrRange touched;
  const AddrRange block = arena_.hand_over(&touched);
  // The pages behind these are given back.
  touched.end = std::min(touched.end, touched.start + kMostTouched);
  heir_->give(SpareMemory::Use::kLists, {block, touched});
}

Result<void> Workspace::reserve(uint64_t bytes, SpareMemory& spare) {
  if (const auto block = spare.take(SpareMemory::Use::kLists, bytes, 2 * bytes); !block.range.empty())
    arena_.adopt(block.range);
  else if (!arena_.reserve(bytes))
    return no_memory("the checkpoint's lists");
  own_ = ArenaVector<AddrRange>(arena_);
  notes_ = ArenaVector<NoteLine>(arena_);
  return {};
}

void Workspace::disown(Arena& arena) {
  disown(arena.range());
  arena.release();
}

void Workspace::disown(AddrRange gone) {
  for (size_t i = own_.size(); i-- > 0;) {
    if (own_[i].start != gone.start) continue;
    own_[i] = own_.back();
    own_.truncate(own_.size() - 1);
  }
}

void Workspace::note(uint32_t severity, const char* text) {
  log_line(log(), text);
  // Without room for it the line is in the log alone.
  [[maybe_unused]] const bool added = notes_.push_back({severity, text});
}

void hide_from_children(AddrRange range) {
  sys::call(__NR_madvise, range.start.value, range.size(), MADV_DONTFORK);
}

}  // namespace ckpt
