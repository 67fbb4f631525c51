// The messages of one direction of a link, encrypted and authenticated: ChaCha20-Poly1305 (RFC 8439) with a key for this
// direction of this connection alone, and the number of each message as nonce. So messages neither change, nor change
// places, nor come twice.
//
// By libsodium. OpenSSL's libcrypto does the same arithmetic with wider registers, in less than half of the time: a link that
// carries much may use it where it is installed. What one of them has sealed the other one opens.
//
// Owner: cluster/link. One thread. Never: uses libcrypto unless asked, for links live in programs that are checkpointed.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ckpt::cluster {

class MessageCipher {
 public:
  using Key = std::array<uint8_t, crypto_aead_chacha20poly1305_ietf_KEYBYTES>;
  static constexpr size_t kTagBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;

  MessageCipher() = default;
  explicit MessageCipher(const Key& key) : key_(key) {}
  // Messages to come go through libcrypto, all to be sealed, or all to be opened. False: there is none here, and all stays as
  // it is.
  bool use_libcrypto(bool seals);

  // known: what is authenticated, but not encrypted. The message is encrypted where it is. False: it must not be sent.
  bool seal(std::span<const uint8_t> known, std::span<uint8_t> message, uint8_t* tag);
  // message: as long as `sealed`, elsewhere. False: it is not what the other end has sealed next; `message` is of no use.
  bool open(std::span<const uint8_t> known, std::span<const uint8_t> sealed, const uint8_t* tag,
            uint8_t* message);

 private:
  using Nonce = std::array<uint8_t, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;
  struct Free {
    void operator()(void* context) const;
  };
  Nonce next_nonce();

  Key key_{};
  uint64_t number_ = 0;  // of the next message
  std::unique_ptr<void, Free> context_;
};

}  // namespace ckpt::cluster
