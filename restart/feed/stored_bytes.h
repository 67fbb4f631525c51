// Reads stored memory from image files: from the page cache what is there, past the cache (O_DIRECT) what is
// not, since it is read only once. Encrypted images are read through their cipher.
//
// Owner:     restart. Callers: any thread of the loader process; threads of the Feeder.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/raii_fd.h"
#include "image/read/image_chain.h"
#include "restart/feed/direct_reads.h"

namespace ckpt {

class StoredBytes {
 public:
  explicit StoredBytes(const ImageChain& image);
  ~StoredBytes();
  StoredBytes(const StoredBytes&) = delete;
  StoredBytes& operator=(const StoredBytes&) = delete;

  // Does all of `reads`, for image number `image` of the chain. `reads` and `direct` are the calling
  // thread's.
  Result<void> read(uint32_t image, std::span<StoredRead> reads, DirectReads& direct) const;

 private:
  struct File {
    ScopedFd direct;       // not valid: the file system has no O_DIRECT, or the file is encrypted
    void* view = nullptr;  // mapped for mincore(2) only
    uint64_t bytes = 0;
  };
  Result<void> read_one(uint32_t image, const StoredRead& read) const;
  bool cached(const File& file, uint64_t offset, size_t bytes) const;

  const ImageChain& image_;
  std::vector<File> files_;
};

}  // namespace ckpt
