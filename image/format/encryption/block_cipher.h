// Blocks of an encrypted image: sealing and opening one (sealed_format.h), by libsodium.
//
// Owner:     image/format. Callers: the writer thread and the agent in the victim; readers. The functions
//            used of libsodium are pure: no allocation, no lock, no state but the choice that
//            prepare_ciphers() made.
#pragma once

#include <cstddef>

#include "image/format/encryption/image_key.h"
#include "image/format/encryption/sealed_format.h"

namespace ckpt {

// A header for a new file: a nonce of its own. False: the kernel has no random bytes.
bool make_sealed_header(const ImageKey& key, const uint8_t run_id[16], SealedHeader& header);
// Is this the key that the file was written with?
bool key_fits(const ImageKey& key, const SealedHeader& header);

class BlockCipher {
 public:
  BlockCipher() = default;
  // The key must outlive this.
  BlockCipher(const ImageKey& key, const SealedHeader& header);

  void seal(uint64_t i, bool last, const std::byte* plain, std::byte* sealed, std::byte* tag) const;
  // In place or not. False, and zeros in `plain`, when it is not what was sealed as block i.
  bool open(uint64_t i, bool last, const std::byte* sealed, const std::byte* tag, std::byte* plain) const;

 private:
  struct Nonce {
    uint8_t file[16];
    uint64_t block;
  };
  const ImageKey* key_ = nullptr;
  Nonce nonce_{};
  BlockFacts facts_{};
};

}  // namespace ckpt
