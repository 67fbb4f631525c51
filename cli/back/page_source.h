// The image's memory on its way into the program: reads it, checks it, and puts it into the part of the memfd
// from which the library copies.
//
// Owner: cli. Ordinary code, one thread. Callers: ProcessBack.
#pragma once

#include <span>
#include <vector>

#include "base/protocol/back_protocol.h"
#include "image/read/image_chain.h"

namespace ckpt::cli {

class PageSource {
 public:
  // data: the memfd from kBackDataAt on. late: the library's own data, which is loaded first; next() does not
  // overwrite it.
  PageSource(const ImageChain& image, std::span<std::byte> data, AddrRange late)
      : image_(image), data_(data), late_(late) {}

  // Reads `wanted`, as far as there is room. Called ahead of the stop with the memory that will probably be
  // wanted, and in the stop with the memory that is; does not read again what it has loaded.
  Result<void> load(const std::vector<AddrRange>& wanted);
  // Bytes of the data that hold something, whole pages.
  uint64_t used() const { return used_; }
  // The loaded part of `wanted`.
  std::vector<BackFill> fills(const std::vector<AddrRange>& wanted) const;
  // The rest of `wanted`, for which there was no room.
  std::vector<AddrRange> missing(const std::vector<AddrRange>& wanted) const;
  // Reads `missing` only to check it: next() must not fail half way.
  Result<void> check(const std::vector<AddrRange>& missing);
  // Forgets all that is loaded but the library's own data. Then loads as much of `missing` as there is room
  // for, and takes it from `missing`.
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
  uint64_t first_free_ = 0;  // behind the library's own data
  std::vector<Part> parts_;  // what is loaded; sorted by address
  std::vector<Part> fresh_;  // what load() has just read
  std::vector<std::byte> extent_;
  uint32_t extent_image_ = UINT32_MAX, extent_index_ = UINT32_MAX;  // what extent_ holds
};

}  // namespace ckpt::cli
