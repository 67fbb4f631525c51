// A connection between two processes that know the same secret: each proves it to the other, and all that is
// said is encrypted and in order. X25519 keys made for the connection (crypto_kx), signed by the secret; then
// crypto_secretstream in each direction.
//
// Owner:     cluster. Callers: head, agents, ckpt-on; one thread for each link.
// Never:     takes a byte of a stranger for a message; listens.
// In a process that is checkpointed all of it is memory and one socket: it goes on after a restart.
#pragma once

#include <sodium.h>

#include <array>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::cluster {

using Secret = std::array<uint8_t, 32>;

Secret make_secret();
std::string hex_of(const Secret& secret);
bool read_secret(const std::string& hex, Secret& secret);

class SealedLink {
 public:
  SealedLink() = default;

  // Both take the socket, say who they are and check the other within 20 s. Errors: kPermission (it does not
  // know the secret), kIo.
  static Result<SealedLink> connect(ScopedFd socket, const Secret& secret) {
    return meet(std::move(socket), secret, true);
  }
  static Result<SealedLink> accept(ScopedFd socket, const Secret& secret) {
    return meet(std::move(socket), secret, false);
  }

  // False: the other end is gone. Blocks while it does not read, at most 10 s.
  bool send(std::string_view message);
  // All messages that are here, at least one unless `wait` is false. False: the other end is gone, or what
  // came is not its own; `messages` has what came before.
  bool receive(std::vector<std::string>& messages, bool wait);

  int fd() const { return socket_.get(); }
  bool valid() const { return socket_.valid(); }
  void close() { socket_.reset(); }

  static constexpr size_t kMostBytes = 1 << 20;  // of a message

 private:
  static Result<SealedLink> meet(ScopedFd socket, const Secret& secret, bool connects);

  ScopedFd socket_;
  crypto_secretstream_xchacha20poly1305_state to_{}, from_{};
  std::string buffer_;  // received, not decrypted
};

// A listening socket at an address of this host, port 0: any. A socket that is connected to it.
// `patience_ms`.
Result<ScopedFd> listen_at(const std::string& address, int port, int* got_port);
Result<ScopedFd> connect_to(const std::string& address, int port, int patience_ms);

}  // namespace ckpt::cluster
