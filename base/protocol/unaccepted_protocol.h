// Connections that no process has accepted yet, in jobs over several hosts: docs/hosts.md, "Not accepted
// yet". What the first process of a host (ckpt-on --serve), which keeps them, is asked, and what it answers.
// One question and one answer a connection, over SOCK_SEQPACKET at an abstract name; kHold alone has no
// answer, and may come several times.
//
// Owner:     base. Callers: ckpt-on, the host agent, ckpt back-part, accept(2) of the program
//            (libckpt_rt/interpose/addresses).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace ckpt {

// Where placeholders come from: nobody else connects from there. In the order of this machine's bytes.
inline constexpr uint32_t kPlaceholderAddress = 127u << 24 | 'C' << 16 | 'K' << 8 | 'P';

struct UnacceptedQuestion {
  enum class What : uint32_t {
    kTakeAll,  // of the agent: keep what waits in all listening sockets of this host's processes
    kClaim,    // of a program: it has accepted the placeholder that comes from this port
    kHold,  // of back-part: with two descriptors, a listening socket of the program and a connection that was
            // accepted in it
  } what;
  uint32_t port;
};

struct UnacceptedAnswer {
  enum class How : uint32_t {
    kTaken,       // `count` connections are kept now
    kConnection,  // the descriptor that comes with the answer; `address` is what accept(2) says
    kNone,        // no connection belongs to it
  } how;
  uint32_t count;
  uint32_t address_length;
  sockaddr_storage address;
};

// hosts: the value of CKPT_HOSTS, which names the job and the host.
inline socklen_t unaccepted_address(std::string_view hosts, sockaddr_un& address) {
  constexpr std::string_view kPrefix = "ckpt_rt.unaccepted.";
  address = {};
  address.sun_family = AF_UNIX;
  const size_t room = sizeof(address.sun_path) - 1 - kPrefix.size();
  const size_t n = hosts.size() < room ? hosts.size() : room;
  std::memcpy(address.sun_path + 1, kPrefix.data(), kPrefix.size());
  std::memcpy(address.sun_path + 1 + kPrefix.size(), hosts.data(), n);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + kPrefix.size() + n);
}

}  // namespace ckpt
