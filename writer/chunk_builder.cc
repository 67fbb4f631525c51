#include "writer/chunk_builder.h"

#include <cstring>

#include "writer/checksum.h"

namespace ckpt {

void seal_section_head(SectionHead& head) {
  head.magic = kSectionMagic;
  head.head_checksum = 0;
  head.head_checksum = checksum_of({reinterpret_cast<const std::byte*>(&head), head.head_bytes});
}

void ChunkBuilder::begin(std::byte* buffer, uint32_t buffer_bytes, uint32_t head_bytes) {
  buffer_ = buffer;
  buffer_bytes_ = buffer_bytes;
  head_bytes_ = head_bytes;
  body_bytes_ = count_ = 0;
  std::memset(buffer_, 0, head_bytes_);
}

uint32_t ChunkBuilder::room() const {
  uint32_t entries = (head_bytes_ - sizeof(SectionHead)) / sizeof(ExtentEntry);
  return count_ == entries ? 0 : buffer_bytes_ - head_bytes_ - body_bytes_;
}

const ExtentEntry& ChunkBuilder::add(uint64_t address, uint32_t length, uint32_t stored, Codec codec,
                                     const uint64_t* checksum) {
  uint32_t padded = static_cast<uint32_t>(round_up_to_block(stored));
  std::memset(next_body() + stored, 0, padded - stored);
  auto* entry = reinterpret_cast<ExtentEntry*>(buffer_ + sizeof(SectionHead)) + count_;
  uint64_t sum = checksum != nullptr ? *checksum : checksum_of({next_body(), padded});
  *entry = {address, length, stored, sum, static_cast<uint32_t>(codec), 0};
  body_bytes_ += padded;
  count_++;
  return *entry;
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
