#include "image/format/encryption/block_cipher.h"

#include <sodium.h>

#include <cstring>

#include "base/sys.h"
#include "image/format/checksum.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

void check_of_key(const ImageKey& key, const uint8_t nonce[16], uint8_t check[16]) {
  crypto_generichash(check, 16, nonce, 16, key.bytes, sizeof(key.bytes));
}

const uint8_t* octets(const void* p) { return static_cast<const uint8_t*>(p); }

}  // namespace

bool make_sealed_header(const ImageKey& key, const uint8_t run_id[16], SealedHeader& header) {
  header = {};
  std::memcpy(header.magic, kHeaderMagic, sizeof(header.magic));
  header.version = kSealedVersion;
  header.byte_order = kByteOrderMark;
  header.machine = kMachineX86_64;
  header.cipher = kCipherXChaCha20Poly1305;
  std::memcpy(header.run_id, run_id, sizeof(header.run_id));
  if (sys::call(__NR_getrandom, header.nonce, sizeof(header.nonce), 0L) != long{sizeof(header.nonce)})
    return false;
  check_of_key(key, header.nonce, header.key_check);
  header.checksum =
      checksum_of({reinterpret_cast<const std::byte*>(&header), offsetof(SealedHeader, checksum)});
  return true;
}

bool key_fits(const ImageKey& key, const SealedHeader& header) {
  uint8_t check[16];
  check_of_key(key, header.nonce, check);
  return sodium_memcmp(check, header.key_check, sizeof(check)) == 0;
}

BlockCipher::BlockCipher(const ImageKey& key, const SealedHeader& header) : key_(&key) {
  static_assert(sizeof(Nonce) == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES);
  static_assert(sizeof(ImageKey) == crypto_aead_xchacha20poly1305_ietf_KEYBYTES);
  static_assert(kTagBytes == crypto_aead_xchacha20poly1305_ietf_ABYTES);
  std::memcpy(nonce_.file, header.nonce, sizeof(nonce_.file));
  std::memcpy(facts_.magic, header.magic, sizeof(facts_.magic));
  facts_.version = header.version;
  std::memcpy(facts_.run_id, header.run_id, sizeof(facts_.run_id));
}

void BlockCipher::seal(uint64_t i, bool last, const std::byte* plain, std::byte* sealed,
                       std::byte* tag) const {
  Nonce nonce = nonce_;
  nonce.block = i;
  BlockFacts facts = facts_;
  facts.last = last ? 1 : 0;
  crypto_aead_xchacha20poly1305_ietf_encrypt_detached(
      reinterpret_cast<uint8_t*>(sealed), reinterpret_cast<uint8_t*>(tag), nullptr, octets(plain), kBlockSize,
      octets(&facts), sizeof(facts), nullptr, octets(&nonce), key_->bytes);
}

bool BlockCipher::open(uint64_t i, bool last, const std::byte* sealed, const std::byte* tag,
                       std::byte* plain) const {
  Nonce nonce = nonce_;
  nonce.block = i;
  BlockFacts facts = facts_;
  facts.last = last ? 1 : 0;
  return crypto_aead_xchacha20poly1305_ietf_decrypt_detached(
             reinterpret_cast<uint8_t*>(plain), nullptr, octets(sealed), kBlockSize, octets(tag),
             octets(&facts), sizeof(facts), octets(&nonce), key_->bytes) == 0;
}

}  // namespace ckpt
