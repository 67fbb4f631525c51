// Compression of one extent at a time, in memory given beforehand: neither library allocates here.
//
// Owner:     writer. Callers: the writer thread only, in the victim. zstd needs 64 KiB of stack.
#pragma once

#include <span>

#include "base/arena.h"
#include "base/result.h"
#include "writer/image_format.h"

namespace ckpt {

class Compressor {
 public:
  // Bytes of arena that start() takes for this codec.
  static size_t workspace_bytes(Codec codec);
  Result<void> start(Codec codec, Arena& arena);
  // Bytes written to `out`, or 0 when they would not fit there.
  size_t compress(std::span<const std::byte> in, std::span<std::byte> out);
  Codec codec() const { return codec_; }

 private:
  Codec codec_ = Codec::kNone;
  void* workspace_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace ckpt
