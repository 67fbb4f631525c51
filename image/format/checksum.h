// The checksum of images: XXH3, 64 bits, seed 0, inlined so that nothing of a library is called. The same
// value on every processor; one with AVX2 computes it in half of the time.
//
// Owner:     image/format. Header only but for checksum_by_avx2(); include it in .cc files only (it is
//            large).
// Callers:   the victim's writer thread and the reader. No allocation, no state outside the arguments.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/machine/has_avx2.h"

namespace ckpt {

// checksum_avx2.cc
uint64_t checksum_by_avx2(const void* data, size_t bytes);

inline uint64_t checksum_of(std::span<const std::byte> bytes) {
  // For a few bytes there is nothing to choose.
  if (bytes.size() >= 1024 && has_avx2()) return checksum_by_avx2(bytes.data(), bytes.size());
  return XXH3_64bits(bytes.data(), bytes.size());
}

// The same over pieces that come one after another.
class StreamingChecksum {
 public:
  StreamingChecksum() { reset(); }
  void reset() { XXH3_64bits_reset(&state_); }
  void add(const void* data, size_t bytes) { XXH3_64bits_update(&state_, data, bytes); }
  uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace ckpt
