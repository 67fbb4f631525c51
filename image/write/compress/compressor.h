// Compression of one extent at a time, in memory given beforehand: neither library allocates here.
//
// Owner:     image/write. Callers: one thread at a time (the sink's, or a helper of its crew), in the victim.
//            zstd needs 64 KiB of stack.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "image/format/image_format.h"

namespace ckpt {

class Compressor {
 public:
  // Bytes of arena that start() takes for this codec; `level` is zstd's, of extents up to kMaxInput.
  static size_t workspace_bytes(Codec codec, int level);
  Result<void> start(Codec codec, int level, Arena& arena);
  static constexpr size_t kMaxInput = 256u << 10;  // bytes compressed at once
  // Bytes written to `out`, or 0 when they would not fit there. acceleration: of lz4, 1 or more
  // (compression_pace.h).
  size_t compress(std::span<const std::byte> in, std::span<std::byte> out, int acceleration = 1);
  Codec codec() const { return codec_; }

 private:
  Codec codec_ = Codec::kNone;
  int level_ = 1;
  void* workspace_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace ckpt
