// Encrypts an image on its way into the file: blocks in, groups of blocks and their tags out
// (sealed_format.h).
//
// Owner:     image/write (SlotWriter). Callers: the sink's thread only, in the victim. No allocation.
#pragma once

#include <utility>

#include "image/format/encryption/block_cipher.h"
#include "image/write/backend/write_queue.h"
#include "image/write/image_output.h"

namespace ckpt {

class ImageSealer {
 public:
  // Writes the header. The key and all else must outlive this.
  // clock: of take_waited(), in ns; nullptr: nothing is measured.
  Result<void> start(const ImageKey& key, const uint8_t run_id[16], WriteQueue& queue, ImageOutput& output,
                     int64_t (*clock)());
  // Whole blocks of the image, in order; `last`: none follows.
  Result<void> add(std::span<const std::byte> blocks, bool last);
  // Of the file, so far.
  uint64_t file_bytes() const { return offset_; }
  // ns that the queue took, which waits for the device, since the last call; the rest of add() is encryption.
  int64_t take_waited() { return std::exchange(waited_ns_, 0); }

 private:
  Result<std::byte*> next_block();
  Result<void> close_group();
  Result<void> flush();
  int64_t now() const { return clock_ != nullptr ? clock_() : 0; }

  BlockCipher cipher_;
  WriteQueue* queue_ = nullptr;
  ImageOutput* output_ = nullptr;
  int64_t (*clock_)() = nullptr;
  int64_t waited_ns_ = 0;
  uint64_t block_ = 0, offset_ = 0;
  uint32_t slot_ = 0, filled_ = 0;
  bool has_slot_ = false;
  alignas(16) std::byte tags_[kBlockSize];
};

}  // namespace ckpt
