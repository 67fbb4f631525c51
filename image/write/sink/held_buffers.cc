#include "image/write/sink/held_buffers.h"

#include <errno.h>

#include <algorithm>
#include "base/preload_rules.h"

namespace ckpt {

Result<void> HeldBuffers::start(uint32_t slots, size_t most, ReleaseBuffer release, void* context,
                                Arena& arena) {
  by_slot_ = static_cast<uint32_t>(std::min<size_t>(most / slots, kMostBySlot));
  if (by_slot_ == 0) return {};
  auto* memory = static_cast<Slot*>(arena.allocate(arena_bytes(slots)));
  if (memory == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "the arena is too small to hold buffers");
  slots_ = {memory, slots};
  for (Slot& slot : slots_) slot.count = 0;
  release_ = release;
  context_ = context;
  return {};
}

void HeldBuffers::release_slot(uint32_t slot) {
  Slot& s = slots_[slot];
  for (uint32_t i = 0; i < s.count; ++i) release_(context_, s.buffers[i]);
  s.count = 0;
}

void HeldBuffers::stop() {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) release_slot(slot);
  slots_ = {};
}

}  // namespace ckpt
