// Finds extents whose bytes are in the image already, so that the index can point at the first ones.
//
// Extents are found by the checksum that they have anyway. A checksum alone decides nothing: a program may
// hold bytes that were chosen to collide. So the bytes are compared with those in the file, which are read
// back and cached for a while:
//
//   the checksum is new                      stored, and remembered
//   known, and written or cached here        compared; equal: repeated, else stored
//   known, but still on its way to the disk  stored once more, and cached, for the next one to be compared
//                                            with
//
// Owner:     image/write. Callers: the sink's thread only, in the victim.
// Memory:    from the arena of start(), touched when it is needed: a table of 4 bytes a place, doubled
//            whenever half of it is used, up to 262144 places; and, once something seems to repeat, up to 6
//            MiB.
// Never:     says repeated of what it has not compared; fails (what cannot be read back is stored again).
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "image/format/image_format.h"

namespace ckpt {

class RepeatedSegments {
 public:
  static size_t arena_bytes();
  // fd: the image, open for reading. index: what was stored, in any order; it stays that of the caller.
  bool start(int fd, const ArenaVector<IndexEntry>& index, Arena& arena);
  void stop() { index_ = nullptr; }
  bool active() const { return index_ != nullptr; }

  // Where in the file the same may be, or 0. `like`: all but address and offset.
  uint64_t candidate(const IndexEntry& like);
  // Is the same at that place? bytes: as stored, with the zeros to a block. written: from the place to this
  // offset the file has what was written to it.
  bool same(uint64_t place, std::span<const std::byte> bytes, uint64_t written);
  // Not found, and stored: the last entry of the index, which has these bytes.
  void remember(std::span<const std::byte> bytes);

 private:
  static constexpr uint32_t kMostPlaces = 1u << 18;
  static constexpr uint32_t kLeastPlaces = 1u << 8;
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kWindowBytes = 1u << 20;  // read back at once: what follows often repeats too
  // As much as a compressor takes; longer ones are not cached.
  static constexpr uint32_t kCopyBytes = 256u << 10;
  static constexpr uint32_t kWindows = 2, kCopies = 16;

  // A run of the file's bytes.
  struct CachedBytes {
    std::byte* at;
    uint64_t offset;
    uint32_t bytes, room;
    uint64_t last_use;
  };

  const std::byte* find_cached(uint64_t offset, uint64_t bytes);
  const std::byte* read_back(uint64_t offset, uint64_t bytes, uint64_t written);
  CachedBytes& oldest(std::span<CachedBytes> of);
  std::span<uint32_t> places_of(uint64_t checksum) {
    return {&places_[(checksum >> 20) & (place_count_ - kWays)], kWays};
  }
  void enter(uint32_t place);
  void grow();

  const ArenaVector<IndexEntry>* index_ = nullptr;
  Arena* arena_ = nullptr;
  int fd_ = -1;
  // 1 + position in the index; 0: none. In groups: a new one displaces the oldest of its group.
  uint32_t* places_ = nullptr;
  uint32_t place_count_ = 0;
  uint64_t uses_ = 0;
  bool cache_next_ = false;
  CachedBytes windows_[kWindows], copies_[kCopies];
};

}  // namespace ckpt
