// The bytes of an image, wherever they come from: the file itself, or what is encrypted in it.
//
// Owner:     image/format. Callers: readers, any thread; in the victim the agent, for header and trailer of
//            images. Raw system calls, no allocation. The bytes that read() gives of an encrypted image are
//            authentic.
#pragma once

#include "base/result.h"
#include "image/format/encryption/block_cipher.h"

namespace ckpt {

class ImageBytes {
 public:
  ImageBytes() = default;
  // A file of `file_bytes`, not 0. An encrypted one needs its key, which must outlive this, and one given a
  // key must be encrypted (kPermission otherwise). `path` is for messages.
  static Result<ImageBytes> open(int fd, uint64_t file_bytes, const ImageKey* key, const char* path);

  bool sealed() const { return sealed_; }
  uint64_t size() const { return bytes_; }  // of the image
  // Exactly that. Of an encrypted image: whole blocks.
  Result<void> read(void* to, uint64_t bytes, uint64_t offset, const char* path) const;

 private:
  Result<void> open_sealed(const SealedHeader& header, uint64_t file_bytes, const ImageKey* key,
                           const char* path);

  int fd_ = -1;
  bool sealed_ = false;
  uint64_t bytes_ = 0;
  BlockCipher cipher_;
};

}  // namespace ckpt
