// What the image holds: the index of its extents, what it inherits, and what is found to be in it already and
// so is listed, but not stored again.
//
// Owner:     image/write (DirectSink). Callers: the sink's thread only, in the victim. Memory from the arena
//            of start(). Never: writes anything; RepeatedSegments reads the file.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "image/write/repeated_segments.h"
#include "image/write/sink/slot_writer.h"

namespace ckpt {

class StoredExtents {
 public:
  // path: of the image, for messages; it must outlive this.
  void start(Arena& arena, const char* path);
  // Repeated ones are looked for in the file fd.
  Result<void> look_for_repeated(int fd, Arena& arena);
  bool looks_for_repeated() const { return repeated_.active(); }
  // No more reading of the file. Any number of times.
  void stop() { repeated_.stop(); }

  // Is an extent like this, with these bytes, stored already? Then it is listed.
  Result<bool> list_repeated(const ExtentEntry& extent, std::span<const std::byte> bytes,
                             const SlotWriter& slots);
  // The extent was stored, at this offset of the image.
  Result<void> list(const ExtentEntry& extent, uint64_t offset, std::span<const std::byte> bytes);
  Result<void> inherit(std::span<const AddrRange> runs);

  // Sorts both by address. An error: a page is in them twice.
  Result<void> sort_and_check();
  std::span<const IndexEntry> index() const { return {index_.data(), index_.size()}; }
  std::span<const InheritedRun> inherited() const { return {inherited_.data(), inherited_.size()}; }
  // Of memory, in index().
  uint64_t listed_bytes() const;
  // Of memory that is stored already, at another address.
  uint64_t repeated_bytes() const { return repeated_bytes_; }

 private:
  Result<void> add(const IndexEntry& entry);
  Error copied_twice(uint64_t address) const;

  const char* path_ = "";
  ArenaVector<IndexEntry> index_;
  ArenaVector<InheritedRun> inherited_;
  RepeatedSegments repeated_;
  uint64_t repeated_bytes_ = 0;
};

}  // namespace ckpt
