#include "image/write/sink/image_sealer.h"

#include <errno.h>

#include <cstring>
#include "base/preload_rules.h"

namespace ckpt {

Result<void> ImageSealer::start(const ImageKey& key, const uint8_t run_id[16], WriteQueue& queue,
                                ImageOutput& output, int64_t (*clock)()) {
  queue_ = &queue;
  clock_ = clock;
  waited_ns_ = 0;
  output_ = &output;
  block_ = offset_ = 0;
  has_slot_ = false;
  std::memset(tags_, 0, sizeof(tags_));
  auto at = next_block();
  if (!at.ok()) return at.error();
  auto& header = *reinterpret_cast<SealedHeader*>(*at);
  if (!make_sealed_header(key, run_id, header)) {
    return make_error(ExitCode::kSystem, EAGAIN,
                      "the kernel gives no random bytes to encrypt with (getrandom)");
  }
  cipher_ = BlockCipher(key, header);
  return {};
}

Result<std::byte*> ImageSealer::next_block() {
  if (has_slot_ && filled_ == queue_->slot_bytes()) CKPT_TRY(flush());
  if (!has_slot_) {
    const int64_t before = now();
    auto slot = queue_->acquire();
    waited_ns_ += now() - before;
    if (!slot.ok()) return slot.error();
    slot_ = *slot;
    has_slot_ = true;
    filled_ = 0;
  }
  std::byte* at = queue_->buffer(slot_) + filled_;
  filled_ += kBlockSize;
  return at;
}

Result<void> ImageSealer::flush() {
  has_slot_ = false;
  const int64_t before = now();
  output_->reserve_until(offset_ + filled_);
  CKPT_TRY(queue_->write(slot_, offset_, filled_));
  waited_ns_ += now() - before;
  offset_ += filled_;
  return {};
}

Result<void> ImageSealer::close_group() {
  auto at = next_block();
  if (!at.ok()) return at.error();
  std::memcpy(*at, tags_, kBlockSize);
  std::memset(tags_, 0, sizeof(tags_));
  return {};
}

Result<void> ImageSealer::add(std::span<const std::byte> blocks, bool last) {
  for (; !blocks.empty(); blocks = blocks.subspan(kBlockSize)) {
    auto at = next_block();
    if (!at.ok()) return at.error();
    const bool end = last && blocks.size() == kBlockSize;
    cipher_.seal(block_, end, blocks.data(), *at, tags_ + block_ % kBlocksOfGroup * kTagBytes);
    block_++;
    if (end || block_ % kBlocksOfGroup == 0) CKPT_TRY(close_group());
  }
  if (last) CKPT_TRY(flush());
  return {};
}

}  // namespace ckpt
