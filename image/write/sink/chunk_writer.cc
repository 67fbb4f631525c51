#include "image/write/sink/chunk_writer.h"
#include "base/preload_rules.h"

namespace ckpt {

Result<void> ChunkWriter::start_holding(size_t most, ReleaseBuffer release, void* context, Arena& arena) {
  CKPT_TRY(held_.start(options_->in_flight, most, release, context, arena));
  if (held_.active())
    slots_.on_free(
        [](void* self, uint32_t slot) { static_cast<ChunkWriter*>(self)->held_.release_slot(slot); }, this);
  return {};
}

Result<void> ChunkWriter::make_room(uint32_t bytes) {
  if (chunk_.active() && chunk_.room() >= bytes) return {};
  CKPT_TRY(flush());
  auto slot = slots_.acquire();
  if (!slot.ok()) return slot.error();
  slot_ = *slot;
  chunk_.begin(slots_.buffer(slot_), slots_.slot_bytes(), options_->head_bytes,
               held_.active() ? slots_.pieces(slot_) : std::span<iovec>());
  return {};
}

Result<void> ChunkWriter::flush() {
  if (!chunk_.active()) return {};
  if (chunk_.empty()) {
    chunk_.forget();
    slots_.discard(slot_);
    return {};
  }
  const uint32_t pieces = chunk_.pieces();
  const uint32_t bytes = chunk_.finish(sections_.take_ordinal(), sections_.image_tag());
  CKPT_TRY(slots_.write(slot_, bytes, false, pieces));
  if (options_->is_measured()) plan_.chunk_written(bytes, slots_.take_waited(), slots_.take_sealed());
  return {};
}

}  // namespace ckpt
