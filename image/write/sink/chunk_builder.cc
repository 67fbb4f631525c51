#include "image/write/sink/chunk_builder.h"

#include <cstring>

#include "image/format/checksum.h"
#include "base/preload_rules.h"

namespace ckpt {

void seal_section_head(SectionHead& head) {
  head.magic = kSectionMagic;
  head.head_checksum = 0;
  head.head_checksum = checksum_of({reinterpret_cast<const std::byte*>(&head), head.head_bytes});
}

void ChunkBuilder::begin(std::byte* buffer, uint32_t buffer_bytes, uint32_t head_bytes,
                         std::span<iovec> pieces) {
  buffer_ = buffer;
  buffer_bytes_ = buffer_bytes;
  head_bytes_ = head_bytes;
  body_bytes_ = staged_bytes_ = count_ = 0;
  std::memset(buffer_, 0, head_bytes_);
  pieces_ = pieces;
  has_held_ = false;
  piece_count_ = pieces_.empty() ? 0 : 1;
  if (!pieces_.empty()) pieces_[0] = {buffer_, head_bytes_};
}

uint32_t ChunkBuilder::room() const {
  const uint32_t most = buffer_bytes_ - head_bytes_;
  // With a list there is a piece for each extent at least: room for one is enough for what is staged.
  const bool listed = pieces_.empty() || piece_count_ < pieces_.size();
  return count_ == most_extents() || body_bytes_ >= most || !listed ? 0 : most - body_bytes_;
}

// An extent that lies elsewhere takes no room in the buffer: the body of a chunk of such extents may be as
// long as the buffer.
bool ChunkBuilder::has_room(uint32_t extents, uint32_t bytes, bool all_held) const {
  return count_ + extents <= most_extents() && piece_count_ + extents <= pieces_.size() &&
         body_bytes_ + bytes <= buffer_bytes_ - (all_held ? 0 : head_bytes_);
}

const ExtentEntry& ChunkBuilder::list(const ExtentEntry& entry, const std::byte* data, uint32_t bytes) {
  auto* listed = reinterpret_cast<ExtentEntry*>(buffer_ + sizeof(SectionHead)) + count_;
  *listed = entry;
  count_++;
  body_bytes_ += bytes;
  if (!pieces_.empty()) {
    iovec& last = pieces_[piece_count_ - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data)
      last.iov_len += bytes;
    else
      pieces_[piece_count_++] = {const_cast<std::byte*>(data), bytes};
  }
  return *listed;
}

const ExtentEntry& ChunkBuilder::add_held(uint64_t address, const std::byte* data, uint32_t length,
                                          uint64_t checksum) {
  has_held_ = true;
  return list({address, length, length, checksum, static_cast<uint32_t>(Codec::kNone), 0}, data, length);
}

const ExtentEntry& ChunkBuilder::add(uint64_t address, uint32_t length, uint32_t stored, Codec codec,
                                     const uint64_t* checksum) {
  uint32_t padded = static_cast<uint32_t>(round_up_to_block(stored));
  std::memset(next_body() + stored, 0, padded - stored);
  uint64_t sum = checksum != nullptr ? *checksum : checksum_of({next_body(), padded});
  const std::byte* data = next_body();
  staged_bytes_ += padded;
  return list({address, length, stored, sum, static_cast<uint32_t>(codec), 0}, data, padded);
}

uint32_t ChunkBuilder::finish(uint64_t ordinal, uint64_t image_tag) {
  auto& head = *reinterpret_cast<SectionHead*>(buffer_);
  head.kind = static_cast<uint32_t>(SectionKind::kChunk);
  head.ordinal = ordinal;
  head.image_tag = image_tag;
  head.head_bytes = head_bytes_;
  head.entry_count = count_;
  head.content_bytes = head.body_bytes = body_bytes_;
  seal_section_head(head);
  buffer_ = nullptr;
  return head_bytes_ + body_bytes_;
}

}  // namespace ckpt
