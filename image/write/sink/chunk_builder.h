// One chunk in a staging buffer: the head is filled in while extents are added behind it. Extents may also
// lie elsewhere: the chunk is then a list of pieces, in the order in which they go into the file.
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. No allocation, no I/O.
#pragma once

#include <sys/uio.h>

#include <span>

#include "image/format/image_format.h"

namespace ckpt {

class ChunkBuilder {
 public:
  // `buffer` holds head_bytes plus the body; both multiples of 4096. pieces: room for the list; may be empty.
  void begin(std::byte* buffer, uint32_t buffer_bytes, uint32_t head_bytes, std::span<iovec> pieces = {});
  bool active() const { return buffer_ != nullptr; }
  bool empty() const { return count_ == 0; }
  // Bytes of body left; 0 when no further extent can be listed.
  uint32_t room() const;
  // Is there room for so many extents of so many bytes in all, of which some lie elsewhere, or all (held)?
  bool has_room(uint32_t extents, uint32_t bytes, bool all_held) const;
  // Where the next extent's stored bytes go, and their offset from the chunk's start.
  std::byte* next_body() { return buffer_ + head_bytes_ + staged_bytes_; }
  uint32_t next_offset() const { return head_bytes_ + body_bytes_; }
  // The stored bytes are at next_body(). Fills their last block with zeros, computes the checksum
  // (unless given) and lists the extent. stored <= room().
  const ExtentEntry& add(uint64_t address, uint32_t length, uint32_t stored, Codec codec,
                         const uint64_t* checksum);
  // Lists an extent of whole pages that lies at `data`, and stays there until it is written.
  const ExtentEntry& add_held(uint64_t address, const std::byte* data, uint32_t length, uint64_t checksum);
  // How many pieces there are; 0: all lies in the buffer.
  uint32_t pieces() const { return has_held_ ? piece_count_ : 0; }
  // Completes the head. Bytes to write from the buffer's start.
  uint32_t finish(uint64_t ordinal, uint64_t image_tag);
  void forget() { buffer_ = nullptr; }

 private:
  uint32_t most_extents() const { return (head_bytes_ - sizeof(SectionHead)) / sizeof(ExtentEntry); }
  const ExtentEntry& list(const ExtentEntry& entry, const std::byte* data, uint32_t bytes);

  std::byte* buffer_ = nullptr;
  uint32_t buffer_bytes_ = 0, head_bytes_ = 0, body_bytes_ = 0, staged_bytes_ = 0, count_ = 0;
  std::span<iovec> pieces_;
  uint32_t piece_count_ = 0;
  bool has_held_ = false;
};

// Fills in magic and head_checksum of a head of head.head_bytes at `head`, everything else being set.
void seal_section_head(SectionHead& head);

}  // namespace ckpt
