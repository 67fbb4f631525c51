// The hash by which a mapped file without a build id is known again: XXH3 of its content, or, of a file that
// is too large to be read at every checkpoint, of pieces spread evenly over it. A change between the pieces
// shows in the time of modification only, which counts there as well.
//
// Owner:     image/format. Header only; include it in .cc files only.
// Callers:   the agent, when it lists mapped files, and ckpt-restart, when it checks them. No allocation.
#pragma once

#include "image/format/checksum.h"

namespace ckpt {

inline constexpr uint64_t kHashedWhole = 64ull << 20;  // bytes; larger files in pieces
inline constexpr uint64_t kHashedPiece = 1ull << 20, kHashedPieces = 64;

// read_at(to, bytes, offset) returns how many bytes there were, less than asked for only at the end of the
// file or on an error. Never 0.
template <typename ReadAt>
uint64_t hash_of_file(uint64_t size, std::span<std::byte> buffer, ReadAt&& read_at) {
  StreamingChecksum sum;
  auto add = [&](uint64_t from, uint64_t to) {
    while (from < to) {
      const size_t want = to - from < buffer.size() ? to - from : buffer.size();
      const size_t n = read_at(buffer.data(), want, from);
      sum.add(buffer.data(), n);
      if (n < want) return;
      from += n;
    }
  };
  if (size <= kHashedWhole) {
    add(0, size);
  } else {
    // The first begins with the file, the last ends with it.
    for (uint64_t i = 0; i < kHashedPieces; ++i) {
      const uint64_t from = (size - kHashedPiece) / (kHashedPieces - 1) * i;
      add(i + 1 == kHashedPieces ? size - kHashedPiece : from,
          i + 1 == kHashedPieces ? size : from + kHashedPiece);
    }
  }
  const uint64_t hash = sum.value();
  return hash == 0 ? 1 : hash;
}

}  // namespace ckpt
