#include "cluster/link/message_cipher.h"

#include <dlfcn.h>

#include <cstring>

namespace ckpt::cluster {

namespace {

// Of openssl/evp.h, the same in OpenSSL 1.1 and 3.
struct LibCrypto {
  void* (*new_context)() = nullptr;
  void (*free_context)(void*) = nullptr;
  const void* (*cipher)() = nullptr;
  int (*begin)(void*, const void* cipher, void* engine, const uint8_t* key, const uint8_t* nonce,
               int seals) = nullptr;
  int (*update)(void*, uint8_t* out, int* written, const uint8_t* in, int bytes) = nullptr;
  int (*finish)(void*, uint8_t* out, int* written) = nullptr;
  int (*control)(void*, int what, int bytes, void* value) = nullptr;
};
constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// nullptr: there is none. It is never closed: it has threads' ends and the process's end to hear of.
const LibCrypto* libcrypto() {
  static LibCrypto all;
  static const bool there = [] {
    void* library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find(library, "EVP_CIPHER_CTX_new", all.new_context) &&
           find(library, "EVP_CIPHER_CTX_free", all.free_context) &&
           find(library, "EVP_chacha20_poly1305", all.cipher) &&
           find(library, "EVP_CipherInit_ex", all.begin) && find(library, "EVP_CipherUpdate", all.update) &&
           find(library, "EVP_CipherFinal_ex", all.finish) &&
           find(library, "EVP_CIPHER_CTX_ctrl", all.control);
  }();
  return there ? &all : nullptr;
}

// The arithmetic of libcrypto: `in` to `out`, all of it.
bool run(const LibCrypto& by, void* context, const uint8_t* nonce, bool seals, std::span<const uint8_t> known,
         std::span<const uint8_t> in, uint8_t* out, uint8_t* tag) {
  int written = 0;
  uint8_t rest[1];  // a stream cipher has none
  if (by.begin(context, nullptr, nullptr, nullptr, nonce, seals ? 1 : 0) != 1) return false;
  if (!seals && by.control(context, kSetTag, MessageCipher::kTagBytes, tag) != 1) return false;
  return by.update(context, nullptr, &written, known.data(), static_cast<int>(known.size())) == 1 &&
         by.update(context, out, &written, in.data(), static_cast<int>(in.size())) == 1 &&
         by.finish(context, rest, &written) == 1 &&
         (!seals || by.control(context, kGetTag, MessageCipher::kTagBytes, tag) == 1);
}

}  // namespace

void MessageCipher::Free::operator()(void* context) const { libcrypto()->free_context(context); }

bool MessageCipher::use_libcrypto(bool seals) {
  const LibCrypto* by = libcrypto();
  if (by == nullptr) return false;
  std::unique_ptr<void, Free> context(by->new_context());
  // A libcrypto that is bound to what FIPS allows has no such cipher.
  if (context == nullptr ||
      by->begin(context.get(), by->cipher(), nullptr, key_.data(), nullptr, seals ? 1 : 0) != 1)
    return false;
  context_ = std::move(context);
  return true;
}

MessageCipher::Nonce MessageCipher::next_nonce() {
  Nonce nonce{};
  std::memcpy(nonce.data(), &number_, sizeof(number_));
  ++number_;
  return nonce;
}

bool MessageCipher::seal(std::span<const uint8_t> known, std::span<uint8_t> message, uint8_t* tag) {
  const Nonce nonce = next_nonce();
  if (context_ != nullptr)
    return run(*libcrypto(), context_.get(), nonce.data(), true, known, message, message.data(), tag);
  return crypto_aead_chacha20poly1305_ietf_encrypt_detached(message.data(), tag, nullptr, message.data(),
                                                            message.size(), known.data(), known.size(),
                                                            nullptr, nonce.data(), key_.data()) == 0;
}

bool MessageCipher::open(std::span<const uint8_t> known, std::span<const uint8_t> sealed, const uint8_t* tag,
                         uint8_t* message) {
  const Nonce nonce = next_nonce();
  if (context_ != nullptr) {
    std::array<uint8_t, kTagBytes> expected;
    std::memcpy(expected.data(), tag, kTagBytes);
    return run(*libcrypto(), context_.get(), nonce.data(), false, known, sealed, message, expected.data());
  }
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(message, nullptr, sealed.data(), sealed.size(),
                                                            tag, known.data(), known.size(), nonce.data(),
                                                            key_.data()) == 0;
}

}  // namespace ckpt::cluster
