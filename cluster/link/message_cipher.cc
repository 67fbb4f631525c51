#include "cluster/link/message_cipher.h"

#include <dlfcn.h>

#include <cstring>

#include "base/sys.h"

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

// nullptr: there is none. libcrypto is never closed: it has given the C library functions to call at the end
// of threads and of the process.
const LibCrypto* libcrypto() {
  static constinit LibCrypto all;
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

// The arithmetic of libcrypto, where the message is.
bool run(const LibCrypto& by, void* context, bool seals, std::span<const uint8_t> number,
         std::span<uint8_t> message, const uint8_t* nonce, uint8_t* tag) {
  int written = 0;
  uint8_t rest[1];  // a stream cipher has none
  if (by.begin(context, nullptr, nullptr, nullptr, nonce, seals ? 1 : 0) != 1) return false;
  if (!seals && by.control(context, kSetTag, MessageCipher::kTagBytes, tag) != 1) return false;
  return by.update(context, nullptr, &written, number.data(), static_cast<int>(number.size())) == 1 &&
         by.update(context, message.data(), &written, message.data(), static_cast<int>(message.size())) ==
             1 &&
         by.finish(context, rest, &written) == 1 &&
         (!seals || by.control(context, kGetTag, MessageCipher::kTagBytes, tag) == 1);
}

}  // namespace

bool random_from_kernel(std::span<uint8_t> bytes) {
  return sys::call(__NR_getrandom, bytes.data(), bytes.size(), 0L) == static_cast<long>(bytes.size());
}

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

MessageCipher::Number MessageCipher::next_number() {
  Number number;
  std::memcpy(number.data(), &number_, sizeof(number_));
  ++number_;
  return number;
}

bool MessageCipher::seal(std::span<uint8_t> message, uint8_t* seal) {
  uint8_t* const nonce = seal;
  uint8_t* const tag = seal + kNonceBytes;
  if (!random_from_kernel({nonce, kNonceBytes})) return false;
  const Number number = next_number();
  if (context_ != nullptr) return run(*libcrypto(), context_.get(), true, number, message, nonce, tag);
  return crypto_aead_chacha20poly1305_ietf_encrypt_detached(message.data(), tag, nullptr, message.data(),
                                                            message.size(), number.data(), number.size(),
                                                            nullptr, nonce, key_.data()) == 0;
}

bool MessageCipher::open(std::span<uint8_t> message, const uint8_t* seal) {
  const uint8_t* const nonce = seal;
  const uint8_t* const tag = seal + kNonceBytes;
  const Number number = next_number();
  if (context_ != nullptr) {
    std::array<uint8_t, kTagBytes> expected;
    std::memcpy(expected.data(), tag, kTagBytes);
    return run(*libcrypto(), context_.get(), false, number, message, nonce, expected.data());
  }
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(message.data(), nullptr, message.data(),
                                                            message.size(), tag, number.data(), number.size(),
                                                            nonce, key_.data()) == 0;
}

}  // namespace ckpt::cluster
