// The messages of one direction of a link, encrypted and authenticated: ChaCha20-Poly1305 (RFC 8439) with a
// key for this direction of this connection alone. The number of each message is authenticated with it. So
// messages neither change, nor change places, nor come twice.
//
// Each nonce is random, and from the kernel: a link of a program that is checkpointed goes back with the
// program, key and number with the rest of the memory. Then it says other things. A nonce that were a number,
// or came of a generator in memory, would come back too, for another message. A message that is sealed once
// more with the same nonce, because the checkpoint fell between the nonce and the sending, is the same
// message. Of 2^32 messages with one key two have the same nonce with a probability of 2^-33. Not kept apart
// are the lives themselves: a message recorded before the program went back opens again behind the one before
// it (docs/hosts.md, Secrets).
//
// By libsodium. OpenSSL's libcrypto does the same arithmetic with wider registers, in less than half of the
// time: a link that carries much may use it where it is installed. Either of them opens what the other has
// sealed.
//
// Owner: cluster/link. One thread. Callers: SealedLink. Never: uses libcrypto unless asked, for links live in
// programs that are checkpointed.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ckpt::cluster {

// At most 256. By the system call: the C library (from glibc 2.41 on), or another one, keeps random bytes in
// memory. Random bytes in memory come back with the program, and the same bytes would follow once more.
bool random_from_kernel(std::span<uint8_t> bytes);

class MessageCipher {
 public:
  using Key = std::array<uint8_t, crypto_aead_chacha20poly1305_ietf_KEYBYTES>;
  static constexpr size_t kNonceBytes = crypto_aead_chacha20poly1305_ietf_NPUBBYTES;
  static constexpr size_t kTagBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;
  static constexpr size_t kSealBytes = kNonceBytes + kTagBytes;  // what goes with a message: nonce, tag

  MessageCipher() = default;
  explicit MessageCipher(const Key& key) : key_(key) {}
  // Messages to come go through libcrypto, all to be sealed, or all to be opened. False: there is none here,
  // and all stays as it is.
  bool use_libcrypto(bool seals);

  // The message is encrypted where it is; `seal` gets what goes with it. False: it must not be sent.
  bool seal(std::span<uint8_t> message, uint8_t* seal);
  // Decrypted where it is. False: it is not what the other end has sealed next; `message` is of no use.
  bool open(std::span<uint8_t> message, const uint8_t* seal);

 private:
  struct Free {
    void operator()(void* context) const;
  };
  using Number = std::array<uint8_t, sizeof(uint64_t)>;
  Number next_number();

  Key key_{};
  uint64_t number_ = 0;  // of the next message
  std::unique_ptr<void, Free> context_;
};

}  // namespace ckpt::cluster
