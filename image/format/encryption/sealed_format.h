// The bytes of an encrypted image: an image (image_format.h) inside an envelope.
//
//   sealed  = SealedHeader group*               all parts multiples of 4096: O_DIRECT works as before
//   group   = block[4096] * 1..256, tags[4096]  all groups but the last hold 256 blocks
//   tags    = tag[16] for each block of the group, zeros
//
// Block i is the i-th block of the image, encrypted and authenticated by XChaCha20-Poly1305 (IETF) with
//   key     of the key file (image_key.h)
//   nonce   SealedHeader::nonce (random, one for each file), then i as 8 bytes
//   data    BlockFacts: what kind of file, of which run, and whether this is the last block
// so that a block that is changed, moved, repeated, left out, or of another image is recognised, and a file
// that was cut: its last block does not say that it is one. Reading at random places stays possible: block i
// and its tag are where i says.
//
// Owner:     image/format. Callers: the writing half (in the victim) and the reading half.
#pragma once

#include "image/format/image_format.h"

namespace ckpt {

// In FileHeader::version's place. The image inside has kFormatVersion.
inline constexpr uint32_t kSealedVersion = 3;
inline constexpr uint32_t kCipherXChaCha20Poly1305 = 1;
inline constexpr uint64_t kBlocksOfGroup = 256;
inline constexpr uint64_t kTagBytes = 16;

struct SealedHeader {
  uint8_t magic[8];     // kHeaderMagic
  uint32_t version;     // kSealedVersion
  uint32_t byte_order;  // kByteOrderMark
  uint32_t machine;     // kMachineX86_64
  uint32_t cipher;      // kCipherXChaCha20Poly1305
  uint8_t run_id[16];   // where FileHeader has it; the same as inside
  uint8_t nonce[16];
  uint8_t key_check[16];  // BLAKE2b of `nonce` with the key: tells a wrong key from damage
  uint8_t zeros[4016];
  uint64_t checksum;  // XXH3 of the 4088 bytes before
};

// Authenticated with each block, not stored.
struct BlockFacts {
  uint8_t magic[8];
  uint32_t version;
  uint32_t last;  // 1: no block follows
  uint8_t run_id[16];
};

static_assert(sizeof(SealedHeader) == kBlockSize && offsetof(SealedHeader, checksum) == 4088);
static_assert(offsetof(SealedHeader, run_id) == offsetof(FileHeader, run_id) && sizeof(BlockFacts) == 32);
static_assert(kBlocksOfGroup * kTagBytes == kBlockSize);

// Where block i and its tag are in the file; the file's length with n blocks.
constexpr uint64_t sealed_block_offset(uint64_t i) { return (1 + i + i / kBlocksOfGroup) * kBlockSize; }
constexpr uint64_t sealed_file_bytes(uint64_t n) {
  return (1 + n + (n + kBlocksOfGroup - 1) / kBlocksOfGroup) * kBlockSize;
}
constexpr uint64_t sealed_tag_offset(uint64_t i, uint64_t n) {
  const uint64_t group = i / kBlocksOfGroup, first = group * kBlocksOfGroup;
  const uint64_t blocks = n - first < kBlocksOfGroup ? n - first : kBlocksOfGroup;
  return sealed_block_offset(first) + blocks * kBlockSize + (i - first) * kTagBytes;
}
// Blocks of the image in a file of this length; 0: there is no such length.
constexpr uint64_t sealed_block_count(uint64_t file_bytes) {
  if (file_bytes % kBlockSize != 0 || file_bytes < 3 * kBlockSize) return 0;
  const uint64_t rest = file_bytes / kBlockSize - 1, groups = (rest + kBlocksOfGroup) / (kBlocksOfGroup + 1);
  const uint64_t n = rest - groups;
  return sealed_file_bytes(n) == file_bytes ? n : 0;
}

}  // namespace ckpt
