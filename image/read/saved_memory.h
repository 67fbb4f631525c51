// The memory of the saved process, by address: for those who look into an image.
//
// Owner:     image/read. Callers: ckpt; ckpt-restart, for a lazy restart; ordinary C++, one thread.
// Never:     gives out a byte whose checksum is wrong; reads files other than the image.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "image/read/image_chain.h"

namespace ckpt {

class SavedMemory {
 public:
  // The image must outlive this.
  explicit SavedMemory(const ImageChain& image) : image_(image) {}

  // The pages of `range` whose contents are in the image, as runs in address order. The others were
  // never touched, all zero, or are those of the file that is mapped there.
  std::vector<AddrRange> stored_in(AddrRange range) const;
  bool stored(Addr at) const { return !stored_in({at.page_down(), at.page_down() + kPageSize}).empty(); }

  // Any bytes; zeros for what is not stored.
  Result<void> read(Addr at, std::span<std::byte> out);

  // Where the contents of a mapping are, as runs in address order: in the image at `from`, which is
  // another address where a shared object is mapped more than once, or in `bytes` (of META).
  struct Contents {
    AddrRange range;
    Addr from;
    Blob bytes;                    // empty: memory
    SavedMemory* saver = nullptr;  // in whose image it is; nullptr: in this one
  };
  std::vector<Contents> contents_of(const ParsedMapping& mapping) const;
  // Another member of the same job, which may have memory that is kMapElsewhere here. It must outlive this.
  void add_member(SavedMemory& other) { members_.push_back(&other); }

 private:
  struct Unpacked {
    const Extent* extent;
    std::vector<std::byte> bytes;
  };
  Result<const std::byte*> unpack(const MemoryPiece& piece);

  const ImageChain& image_;
  std::vector<SavedMemory*> members_;
  std::list<Unpacked> recent_;  // newest first, a few
};

// The mapping that holds an address, or nullptr.
const ParsedMapping* mapping_at(const ImageMeta& meta, Addr at);

}  // namespace ckpt
