// One chunk in a staging buffer: the head is filled in while extents are added behind it.
//
// Owner:     writer. Callers: the writer thread only, in the victim. No allocation, no I/O.
#pragma once

#include "writer/image_format.h"

namespace ckpt {

class ChunkBuilder {
 public:
  // `buffer` holds head_bytes plus the body; both multiples of 4096.
  void begin(std::byte* buffer, uint32_t buffer_bytes, uint32_t head_bytes);
  bool active() const { return buffer_ != nullptr; }
  bool empty() const { return count_ == 0; }
  // Bytes of body left; 0 when no further extent can be listed.
  uint32_t room() const;
  // Where the next extent's stored bytes go, and their offset from the chunk's start.
  std::byte* next_body() { return buffer_ + head_bytes_ + body_bytes_; }
  uint32_t next_offset() const { return head_bytes_ + body_bytes_; }
  // The stored bytes are at next_body(). Fills their last block with zeros, computes the checksum
  // (unless given) and lists the extent. stored <= room().
  const ExtentEntry& add(uint64_t address, uint32_t length, uint32_t stored, Codec codec,
                         const uint64_t* checksum);
  // Completes the head. Bytes to write from the buffer's start.
  uint32_t finish(uint64_t ordinal, uint64_t image_tag);
  void forget() { buffer_ = nullptr; }

 private:
  std::byte* buffer_ = nullptr;
  uint32_t buffer_bytes_ = 0, head_bytes_ = 0, body_bytes_ = 0, count_ = 0;
};

// Fills in magic and head_checksum of a head of head.head_bytes at `head`, everything else being set.
void seal_section_head(SectionHead& head);

}  // namespace ckpt
