#include "cluster/link/sealed_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace ckpt::cluster {

namespace {

// What each end sends first: the key made for this connection. Then each sends an authenticator by the
// secret, over both keys and its own side (sign()).
struct Hello {
  char magic[8];
  uint8_t key[crypto_kx_PUBLICKEYBYTES];
};
constexpr char kMagic[8] = {'c', 'k', 'p', 't', 'h', 's', 't', '3'};

bool send_all(int fd, const void* bytes, size_t n) {
  const char* at = static_cast<const char*>(bytes);
  while (n != 0) {
    const ssize_t sent = ::send(fd, at, n, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}

// False: errno says why; 0: the other end has closed the connection. deadline_ns: on CLOCK_MONOTONIC. The
// deadline bounds all of the bytes together, however slowly the bytes come.
bool receive_all(int fd, void* bytes, size_t n, int64_t deadline_ns) {
  char* at = static_cast<char*>(bytes);
  while (n != 0) {
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) {
      errno = ETIMEDOUT;
      return false;
    }
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>((left_ns + 999'999) / 1'000'000)) <= 0) continue;
    const ssize_t got = ::recv(fd, at, n, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

void limit_sending(int fd) {
  constexpr timeval kLongest{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kLongest, sizeof(kLongest));
}

void set_int(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

// A host that is cut off is noticed within that time, also while nothing is said: the kernel asks now and
// then.
void set_silence(int fd, int ms) {
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(ms / 3000, 1));
  set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(ms / 7500, 1));
  set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
  set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

void sign(uint8_t (&mac)[crypto_auth_BYTES], const Secret& secret, uint8_t side, const uint8_t* connects,
          const uint8_t* accepts) {
  uint8_t text[1 + 2 * crypto_kx_PUBLICKEYBYTES];
  text[0] = side;
  std::memcpy(text + 1, connects, crypto_kx_PUBLICKEYBYTES);
  std::memcpy(text + 1 + crypto_kx_PUBLICKEYBYTES, accepts, crypto_kx_PUBLICKEYBYTES);
  crypto_auth(mac, text, sizeof(text), secret.data());
}

// The key of a direction depends on the secret as well, not on the keys of this connection alone.
MessageCipher cipher_of(uint8_t (&key)[crypto_kx_SESSIONKEYBYTES], const Secret& secret) {
  MessageCipher::Key mixed;
  crypto_generichash(mixed.data(), mixed.size(), key, sizeof(key), secret.data(), secret.size());
  sodium_memzero(key, sizeof(key));
  MessageCipher cipher(mixed);
  sodium_memzero(mixed.data(), mixed.size());
  return cipher;
}

// errno is receive_all's.
Error broken(int patience_ms) {
  if (errno == ETIMEDOUT)
    return make_error(ExitCode::kIo, errno, "the other host has said nothing for {} ms", patience_ms);
  return make_error(ExitCode::kIo, errno, "the other host has closed the connection");
}

}  // namespace

Secret make_secret() {
  Secret secret;
  (void)!sodium_init();
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

std::string hex_of(const Secret& secret) {
  char text[2 * sizeof(Secret) + 1];
  return sodium_bin2hex(text, sizeof(text), secret.data(), secret.size());
}

bool read_secret(const std::string& hex, Secret& secret) {
  size_t bytes = 0;
  return hex.size() == 2 * secret.size() &&
         sodium_hex2bin(secret.data(), secret.size(), hex.data(), hex.size(), nullptr, &bytes, nullptr) ==
             0 &&
         bytes == secret.size();
}

Result<SealedLink> SealedLink::meet(ScopedFd socket, const Secret& secret, bool connects, int patience_ms) {
  const int64_t deadline_ns = now_ns() + int64_t{patience_ms} * 1'000'000;
  if (sodium_init() < 0) return make_error(ExitCode::kSystem, 0, "libsodium does not start");
  const int fd = socket.get();
  limit_sending(fd);
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_silence(fd, kSilenceMs);
  Hello own{}, other{};
  uint8_t own_secret[crypto_kx_SECRETKEYBYTES];
  std::memcpy(own.magic, kMagic, sizeof(kMagic));
  uint8_t seed[crypto_kx_SEEDBYTES];
  if (!random_from_kernel(seed) || crypto_kx_seed_keypair(own.key, own_secret, seed) != 0)
    return make_error(ExitCode::kSystem, errno, "the kernel gives no random bytes (getrandom)");
  sodium_memzero(seed, sizeof(seed));
  if (!send_all(fd, &own, sizeof(own)) || !receive_all(fd, &other, sizeof(other), deadline_ns))
    return broken(patience_ms);
  if (std::memcmp(other.magic, kMagic, sizeof(kMagic)) != 0)
    return make_error(ExitCode::kIncompatible, 0, "the other end is no agent of ckpt, or of another version");
  const uint8_t* key_of_connecting = connects ? own.key : other.key;
  const uint8_t* key_of_accepting = connects ? other.key : own.key;
  uint8_t mac[crypto_auth_BYTES], theirs[crypto_auth_BYTES], expected[crypto_auth_BYTES];
  sign(mac, secret, connects ? 'c' : 'a', key_of_connecting, key_of_accepting);
  sign(expected, secret, connects ? 'a' : 'c', key_of_connecting, key_of_accepting);
  if (!send_all(fd, mac, sizeof(mac)) || !receive_all(fd, theirs, sizeof(theirs), deadline_ns))
    return broken(patience_ms);
  if (sodium_memcmp(theirs, expected, sizeof(theirs)) != 0)
    return make_error(ExitCode::kPermission, 0, "the other end does not know the secret of this job");
  uint8_t receive_key[crypto_kx_SESSIONKEYBYTES], send_key[crypto_kx_SESSIONKEYBYTES];
  const int made = connects
                       ? crypto_kx_client_session_keys(receive_key, send_key, own.key, own_secret, other.key)
                       : crypto_kx_server_session_keys(receive_key, send_key, own.key, own_secret, other.key);
  sodium_memzero(own_secret, sizeof(own_secret));
  if (made != 0) return make_error(ExitCode::kPermission, 0, "the other end has sent a key that is none");
  SealedLink link;
  link.to_ = cipher_of(send_key, secret);
  link.from_ = cipher_of(receive_key, secret);
  link.socket_ = std::move(socket);
  return link;
}

void SealedLink::allow_silence(int ms) {
  if (ms != kSilenceMs) set_silence(socket_.get(), ms);
}

// A frame: the length of what follows, the encrypted message, its seal. A length that is changed is noticed
// as well: the tag would be of other bytes.
constexpr size_t kSeal = MessageCipher::kSealBytes;

bool SealedLink::send(std::string_view message) {
  if (message.size() > kMostBytes) return false;
  std::memcpy(compose(message.size()).data(), message.data(), message.size());
  const bool sent = send_composed();
  // A link says little most of the time: it does not hold the longest message for the rest of its life.
  constexpr size_t kMostRoom = 1 << 20;
  if (composed_.size() > kMostRoom) give_room_back();
  return sent;
}

std::span<std::byte> SealedLink::compose(size_t bytes) {
  const size_t frame = sizeof(uint32_t) + bytes + kSeal;
  if (composed_.size() < frame) composed_.resize(frame);
  composed_bytes_ = bytes;
  return std::span(composed_).subspan(sizeof(uint32_t), bytes);
}

bool SealedLink::send_composed() {
  if (!valid() || composed_bytes_ > kMostBytes) return false;
  const auto length = static_cast<uint32_t>(composed_bytes_ + kSeal);
  std::memcpy(composed_.data(), &length, sizeof(length));
  auto* message = reinterpret_cast<uint8_t*>(composed_.data()) + sizeof(length);
  return to_.seal({message, composed_bytes_}, message + composed_bytes_) &&
         send_all(fd(), composed_.data(), sizeof(length) + length);
}

// From what receive() has read already, and then from the socket.
bool SealedLink::take_bytes(std::byte* to, size_t bytes) {
  const size_t known = std::min(bytes, buffer_.size());
  std::memcpy(to, buffer_.data(), known);
  buffer_.erase(0, known);
  for (size_t done = known; done < bytes;) {
    const ssize_t n = ::recv(fd(), to + done, bytes - done, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

std::optional<size_t> SealedLink::wait_for_length() {
  uint32_t length = 0;
  while (valid() && buffer_.size() < sizeof(length)) {
    char bytes[sizeof(length)];
    const ssize_t n = ::recv(fd(), bytes, sizeof(length) - buffer_.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    buffer_.append(bytes, static_cast<size_t>(n));
  }
  if (!valid()) return std::nullopt;
  std::memcpy(&length, buffer_.data(), sizeof(length));
  if (length < kSeal || length > kMostBytes + kSeal) return std::nullopt;
  return length - kSeal;
}

std::optional<size_t> SealedLink::receive_into(std::span<std::byte> room) {
  const auto bytes = wait_for_length();
  if (!bytes || *bytes > room.size()) return std::nullopt;
  buffer_.erase(0, sizeof(uint32_t));
  std::array<std::byte, kSeal> seal;
  if (!take_bytes(room.data(), *bytes) || !take_bytes(seal.data(), seal.size()) ||
      !from_.open({reinterpret_cast<uint8_t*>(room.data()), *bytes}, reinterpret_cast<uint8_t*>(seal.data())))
    return std::nullopt;
  return bytes;
}

bool SealedLink::receive(std::vector<std::string>& messages, bool wait) {
  if (!valid()) return false;
  for (bool any = false;;) {
    // The messages that have come whole.
    size_t at = 0;
    uint32_t length = 0;
    while (buffer_.size() - at >= sizeof(length)) {
      std::memcpy(&length, buffer_.data() + at, sizeof(length));
      if (length < kSeal || length > kMostBytes + kSeal) return false;
      if (buffer_.size() - at - sizeof(length) < length) break;
      std::string message = buffer_.substr(at + sizeof(length), length - kSeal);
      const char* seal = buffer_.data() + at + sizeof(length) + message.size();
      if (!from_.open({reinterpret_cast<uint8_t*>(message.data()), message.size()},
                      reinterpret_cast<const uint8_t*>(seal)))
        return false;
      at += sizeof(length) + length;
      messages.push_back(std::move(message));
      any = true;
    }
    buffer_.erase(0, at);
    if (any) return true;
    char bytes[64 << 10];
    const ssize_t n = ::recv(fd(), bytes, sizeof(bytes), wait ? 0 : MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !wait) return true;
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
  }
}

namespace {

// Numbers only: callers look names up.
bool read_address(const std::string& text, int port, sockaddr_storage& out, socklen_t& length) {
  out = {};
  auto& four = reinterpret_cast<sockaddr_in&>(out);
  auto& six = reinterpret_cast<sockaddr_in6&>(out);
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(port));
    length = sizeof(four);
    return true;
  }
  if (inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) != 1) return false;
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  length = sizeof(six);
  return true;
}

}  // namespace

Result<ScopedFd> listen_at(const std::string& address, int port, int* got_port) {
  sockaddr_storage at;
  socklen_t length;
  if (!read_address(address, port, at, length))
    return make_error(ExitCode::kUsage, 0, "{} is no address", address);
  ScopedFd fd(socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_int(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ss_family == AF_INET6) set_int(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);  // "::" is IPv4 as well
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0 ||
      listen(fd.get(), 1024) != 0) {
    return make_error(ExitCode::kUnavailable, errno, "cannot listen at {} ({})", address, errno_name(errno));
  }
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0 && got_port != nullptr)
    *got_port = ntohs(reinterpret_cast<sockaddr_in&>(at).sin_port);
  return fd;
}

Result<ScopedFd> connect_to(const std::string& address, int port, int patience_ms) {
  sockaddr_storage to;
  socklen_t length;
  if (!read_address(address, port, to, length))
    return make_error(ExitCode::kUsage, 0, "{} is no address", address);
  ScopedFd fd(socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = 0;
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), length) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd wait{fd.get(), POLLOUT, 0};
    socklen_t size = sizeof(error);
    const int64_t deadline_ns = now_ns() + int64_t{patience_ms} * 1'000'000;
    int ready;
    do {
      const int64_t left_ns = std::max<int64_t>(deadline_ns - now_ns(), 0);
      ready = poll(&wait, 1, static_cast<int>((left_ns + 999'999) / 1'000'000));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) {
      error = ETIMEDOUT;
    } else {
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0)
    return make_error(ExitCode::kUnavailable, error, "{} port {} cannot be reached ({})", address, port,
                      errno_name(error));
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

}  // namespace ckpt::cluster
