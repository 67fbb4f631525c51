// A connection between two processes that know the same secret: each proves it to the other, and messages are
// encrypted and in order. X25519 keys made for the connection (crypto_kx), authenticated by the secret
// (crypto_auth); then a key for each direction (message_cipher.h).
//
// Owner:     cluster. Callers: head, agents, ckpt-on, exchanges of keepers; one thread for each link.
// Never:     takes a byte for a message before the other end has proved the secret.
// A link in a process that is checkpointed is memory and one socket, so it goes on after a restart.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"
#include "cluster/link/message_cipher.h"

namespace ckpt::cluster {

using Secret = std::array<uint8_t, 32>;

Secret make_secret();
std::string hex_of(const Secret& secret);
bool read_secret(const std::string& hex, Secret& secret);

class SealedLink {
 public:
  SealedLink() = default;

  // Both take the socket, prove the secret and check the other end's proof. Both wait for the other end at
  // most `patience_ms` in all, also for an end that sends a byte now and then. Errors: kPermission (the other
  // end does not know the secret), kIncompatible, kIo.
  static Result<SealedLink> connect(ScopedFd socket, const Secret& secret, int patience_ms = kPatienceMs) {
    return meet(std::move(socket), secret, true, patience_ms);
  }
  static Result<SealedLink> accept(ScopedFd socket, const Secret& secret, int patience_ms = kPatienceMs) {
    return meet(std::move(socket), secret, false, patience_ms);
  }

  // False: the other end is gone, has not read for 10 s, or the message is longer than kMostBytes.
  bool send(std::string_view message);
  // The same without a copy: room for a message of so many bytes, which are encrypted where they are; then
  // that it is sent. The room is valid until the next call that sends.
  std::span<std::byte> compose(size_t bytes);
  bool send_composed();
  // The memory of that room, until the next call that sends.
  void give_room_back() { std::vector<std::byte>().swap(composed_); }
  size_t room_held() const { return composed_.size(); }
  // Appends the messages that have arrived; with `wait` it waits for the first, without a limit. False: the
  // other end is gone, or bytes came that do not authenticate; `messages` has what came before.
  bool receive(std::vector<std::string>& messages, bool wait);

  // Waits for the next message without a limit, until its length has come, which it returns; the message is
  // still to be received. Nothing: as receive()'s false.
  std::optional<size_t> wait_for_length();
  // The next message, decrypted in `room`; waits for it without a limit. Its length; nothing: as receive()'s
  // false, or it is longer than the room. Takes no byte behind it.
  std::optional<size_t> receive_into(std::span<std::byte> room);

  // For a link that carries much, in a process that is not checkpointed: see message_cipher.h.
  // False: at least one direction goes on by libsodium.
  bool use_libcrypto() {
    const bool sends = to_.use_libcrypto(true), receives = from_.use_libcrypto(false);
    return sends && receives;
  }

  // How long the other end's kernel may be silent before the connection breaks; kSilenceMs unless set.
  void allow_silence(int ms);

  int fd() const { return socket_.get(); }
  bool valid() const { return socket_.valid(); }
  void close() { socket_.reset(); }

  static constexpr size_t kMostBytes = 64 << 20;  // of a message
  static constexpr int kPatienceMs = 20'000;      // the other end may be meeting others first
  static constexpr int kSilenceMs = 15'000;

 private:
  bool take_bytes(std::byte* to, size_t bytes);
  static Result<SealedLink> meet(ScopedFd socket, const Secret& secret, bool connects, int patience_ms);

  ScopedFd socket_;
  MessageCipher to_, from_;
  std::string buffer_;               // received, not decrypted
  std::vector<std::byte> composed_;  // a frame; it grows to the longest one, but see send()
  size_t composed_bytes_ = 0;
};

// Addresses are numbers, IPv4 or IPv6. listen_at: a listening socket of this host; port 0: any, *got_port
// says which. connect_to: a connected socket, within `patience_ms`.
Result<ScopedFd> listen_at(const std::string& address, int port, int* got_port);
Result<ScopedFd> connect_to(const std::string& address, int port, int patience_ms);

}  // namespace ckpt::cluster
