// The image's memory on its way into the program: read, checked, and laid into the part of the memfd that the
// library copies from.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <span>
#include <vector>

#include "base/back_protocol.h"
#include "image/read/image_chain.h"

namespace ckpt::cli {

class PageSource {
 public:
  // data: the memfd's, from kBackDataAt on. late: the library's own data, which has to be in the first part.
  PageSource(const ImageChain& image, std::span<std::byte> data, AddrRange late)
      : image_(image), data_(data), late_(late) {}

  // Reads what is wanted as far as there is room: ahead of the stop, and again when it is known for sure.
  // What is there already is not read again.
  Result<void> load(const std::vector<AddrRange>& wanted);
  // Bytes of the data that hold something, whole pages.
  uint64_t used() const { return used_; }
  // What of `wanted` has been loaded.
  std::vector<BackFill> fills(const std::vector<AddrRange>& wanted) const;
  // The rest, for which there was no room: is all of it good? Then it comes in parts.
  std::vector<AddrRange> missing(const std::vector<AddrRange>& wanted) const;
  Result<void> check(const std::vector<AddrRange>& missing);
  // Forgets all that is loaded, and loads what there is room for of `missing`, which is left with the rest.
  Result<std::vector<BackFill>> next(std::vector<AddrRange>& missing);

 private:
  struct Part {
    AddrRange memory;
    uint64_t at;
  };
  Result<void> read(AddrRange range, bool only_check);
  void advise(const std::vector<AddrRange>& ranges) const;

  const ImageChain& image_;
  std::span<std::byte> data_;
  const AddrRange late_;
  uint64_t used_ = 0;
  uint64_t first_free_ = 0;  // behind what is late
  std::vector<Part> parts_;  // sorted by address
  std::vector<Part> fresh_;
  std::vector<std::byte> extent_;
  uint32_t extent_image_ = UINT32_MAX, extent_index_ = UINT32_MAX;  // what extent_ holds
};

}  // namespace ckpt::cli
