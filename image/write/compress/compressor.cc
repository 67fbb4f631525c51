#include "image/write/compress/compressor.h"

#include <errno.h>
#define LZ4_STATIC_LINKING_ONLY
#include <lz4.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// zstd has parameters of its own for small inputs, and the smaller ones do not always need less.
size_t zstd_bytes(int level) {
  size_t most = 0;
  for (unsigned long long input : {16ull << 10, 128ull << 10, 256ull << 10}) {
    static_assert(Compressor::kMaxInput == 256u << 10);
    size_t n = ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, input, 0));
    if (n > most) most = n;
  }
  return most;
}

}  // namespace

size_t Compressor::workspace_bytes(Codec codec, int level) {
  switch (codec) {
    case Codec::kLz4:
      return static_cast<size_t>(LZ4_sizeofState());
    case Codec::kZstd:
      return zstd_bytes(level);
    default:
      return 0;
  }
}

Result<void> Compressor::start(Codec codec, int level, Arena& arena) {
  codec_ = codec;
  level_ = level;
  size_t bytes = workspace_bytes(codec, level);
  if (bytes == 0) return {};
  workspace_ = arena.allocate(bytes, 64);
  if (workspace_ == nullptr) {
    return make_error(ExitCode::kInternal, ENOMEM,
                      "compression memory of {} bytes does not fit into the arena", bytes);
  }
  if (codec == Codec::kZstd) {
    context_ = ZSTD_initStaticCCtx(workspace_, bytes);
    if (context_ == nullptr) return make_error(ExitCode::kInternal, 0, "zstd refuses its {} bytes", bytes);
  }
  return {};
}

size_t Compressor::compress(std::span<const std::byte> in, std::span<std::byte> out, int acceleration) {
  if (codec_ == Codec::kLz4) {
    int n = LZ4_compress_fast_extState(workspace_, reinterpret_cast<const char*>(in.data()),
                                       reinterpret_cast<char*>(out.data()), static_cast<int>(in.size()),
                                       static_cast<int>(out.size()), acceleration);
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  size_t n = ZSTD_compressCCtx(static_cast<ZSTD_CCtx*>(context_), out.data(), out.size(), in.data(),
                               in.size(), level_);
  return ZSTD_isError(n) ? 0 : n;
}

}  // namespace ckpt
