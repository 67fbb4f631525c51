// Makes the checksums of an image right again after its bytes were changed, so that changes reach the
// checks behind the checksums. Survives any bytes.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "image/format/checksum.h"
#include "image/format/image_format.h"

namespace ckpt {

inline std::span<const std::byte> part_of(const std::string& image, uint64_t at, uint64_t n) {
  return {reinterpret_cast<const std::byte*>(image.data()) + at, n};
}

inline void reseal(std::string& image) {
  if (image.size() < 2 * kBlockSize || image.size() % kBlockSize != 0) return;
  auto put = [&](uint64_t at, uint64_t value) { std::memcpy(image.data() + at, &value, sizeof(value)); };
  uint64_t trailer_at = image.size() - kBlockSize;
  uint64_t tag = checksum_of(part_of(image, 0, kBlockSize - 8));
  put(kBlockSize - 8, tag);

  FileTrailer trailer;
  std::memcpy(&trailer, image.data() + trailer_at, sizeof(trailer));
  for (uint64_t at = kBlockSize; at + kBlockSize <= trailer_at;) {
    SectionHead head;
    std::memcpy(&head, image.data() + at, sizeof(head));
    uint64_t room = trailer_at - at;
    if (head.head_bytes < kBlockSize || head.head_bytes > room || head.body_bytes > room - head.head_bytes)
      break;
    uint64_t body = at + head.head_bytes;
    if (head.kind == static_cast<uint32_t>(SectionKind::kChunk)) {
      uint64_t entry_at = at + sizeof(SectionHead), data = body, end = body + head.body_bytes;
      for (uint32_t i = 0; i < head.entry_count && entry_at + sizeof(ExtentEntry) <= body; i++) {
        ExtentEntry entry;
        std::memcpy(&entry, image.data() + entry_at, sizeof(entry));
        uint64_t padded = round_up_to_block(entry.stored);
        if (padded > end - data) break;
        put(entry_at + offsetof(ExtentEntry, checksum), checksum_of(part_of(image, data, padded)));
        data += padded;
        entry_at += sizeof(ExtentEntry);
      }
    } else {
      if (head.kind == static_cast<uint32_t>(SectionKind::kIndex)) {
        const uint64_t end = body + std::min(head.content_bytes, head.body_bytes);
        for (uint64_t e = body; e + sizeof(IndexEntry) <= end; e += sizeof(IndexEntry)) {
          IndexEntry entry;
          std::memcpy(&entry, image.data() + e, sizeof(entry));
          uint64_t padded = round_up_to_block(entry.stored);
          if (entry.offset > trailer_at || padded > trailer_at - entry.offset) continue;
          put(e + offsetof(IndexEntry, checksum), checksum_of(part_of(image, entry.offset, padded)));
        }
      }
      uint64_t sum = checksum_of(part_of(image, body, head.body_bytes));
      put(at + offsetof(SectionHead, body_checksum), sum);
      if (at == trailer.meta_offset) trailer.meta_checksum = sum;
      if (at == trailer.index_offset) trailer.index_checksum = sum;
      if (at == trailer.inherited_offset) trailer.inherited_checksum = sum;
    }
    put(at + offsetof(SectionHead, image_tag), tag);
    put(at + offsetof(SectionHead, head_checksum), 0);
    put(at + offsetof(SectionHead, head_checksum), checksum_of(part_of(image, at, head.head_bytes)));
    at = body + head.body_bytes;
  }
  trailer.image_tag = tag;
  std::memcpy(image.data() + trailer_at, &trailer, sizeof(trailer));
  put(image.size() - 8, checksum_of(part_of(image, trailer_at, kBlockSize - 8)));
}

}  // namespace ckpt
