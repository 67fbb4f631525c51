#include "libckpt_rt/interpose/addresses/unaccepted.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/protocol/unaccepted_protocol.h"
#include "base/raii_fd.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::addresses {
namespace {

constinit sockaddr_un keeper{};  // ckpt-on of this host
constinit socklen_t keeper_length = 0;

// 0: it is no placeholder.
uint16_t port_of_placeholder(const sockaddr_storage& peer) {
  constexpr uint8_t kFour[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  uint32_t address = 0;
  if (peer.ss_family == AF_INET) {
    address = reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr;
  } else if (peer.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
    if (std::memcmp(&six, kFour, sizeof(kFour)) == 0)
      std::memcpy(&address, reinterpret_cast<const char*>(&six) + sizeof(kFour), sizeof(address));
  }
  if (__builtin_expect(address != __builtin_bswap32(kPlaceholderAddress), 1)) return 0;
  return __builtin_bswap16(reinterpret_cast<const sockaddr_in&>(peer).sin_port);
}

template <typename... Args>
long again_if_interrupted(long nr, Args... args) {
  long r;
  while ((r = sys::call(nr, args...)) == -EINTR) {
  }
  return r;
}

// The descriptor of the connection; negative: there is none. The question is closed only when the program has
// it.
int ask(int question, uint16_t port, UnacceptedAnswer& answer) {
  if (again_if_interrupted(__NR_connect, question, &keeper, keeper_length) != 0) return -1;
  const UnacceptedQuestion q{UnacceptedQuestion::What::kClaim, port};
  if (again_if_interrupted(__NR_sendto, question, &q, sizeof(q), MSG_NOSIGNAL, 0L, 0L) != sizeof(q))
    return -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (again_if_interrupted(__NR_recvmsg, question, &message, MSG_CMSG_CLOEXEC) != sizeof(answer) ||
      answer.how != UnacceptedAnswer::How::kConnection)
    return -1;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(c), sizeof(fd));
  return fd;
}

// Puts the connection in the place of the placeholder `fd`, and its other end's address into `peer`.
bool exchange(int fd, uint16_t port, int flags, sockaddr_storage& peer, socklen_t& length) {
  UnacceptedAnswer answer{};
  const ScopedFd question(
      static_cast<int>(sys::call(__NR_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0L)));
  const ScopedFd connection(question.valid() ? ask(question.get(), port, answer) : -1);
  if (!connection.valid()) return false;
  if ((flags & SOCK_NONBLOCK) != 0) sys::call(__NR_fcntl, connection.get(), F_SETFL, O_RDWR | O_NONBLOCK);
  if (sys::failed(sys::call(__NR_dup3, connection.get(), fd, (flags & SOCK_CLOEXEC) != 0 ? O_CLOEXEC : 0)))
    return false;
  length = std::min<socklen_t>(answer.address_length, sizeof(peer));
  std::memcpy(&peer, &answer.address, length);
  return true;
}

}  // namespace

void remember_name(const char* hosts) { keeper_length = unaccepted_address(hosts, keeper); }

long accept4_over_hosts(int fd, void* address, socklen_t* length, int flags) {
  for (;;) {
    sockaddr_storage peer;
    socklen_t bytes = sizeof(peer);
    InterruptibleCall c(__NR_accept4, fd, calls::word(&peer), calls::word(&bytes), flags);
    c.with_socket_timeout(Timeout::kSocketReceive);
    const long r = c.run();
    if (r < 0) return r;
    const uint16_t port = bytes == 0 ? uint16_t{0} : port_of_placeholder(peer);
    if (port == 0) {
      to_job(&peer, bytes);
    } else if (!exchange(static_cast<int>(r), port, flags, peer, bytes)) {
      // Its connection was accepted before the placeholder came to be: there is one less.
      sys::call(__NR_close, r);
      continue;
    }
    if (address != nullptr && length != nullptr) {
      std::memcpy(address, &peer, std::min(bytes, *length));
      *length = bytes;
    }
    return r;
  }
}

}  // namespace ckpt::addresses
