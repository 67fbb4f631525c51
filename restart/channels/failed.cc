#include <errno.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "restart/channels/channel_builder.h"

// TCP sockets in which an error waits. The kernel alone can put it there, so it is made to happen again: a
// port at which nobody listens refuses, an end behind a filter that drops everything never answers.

namespace ckpt {
namespace {

// The kernel first sends a SYN again after a second.
constexpr int kLongestWaitForError = 5000;  // ms

// All that arrives at fd is dropped without an answer.
void drop_all(int fd) {
  sock_filter none{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &none};
  setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

void wait_for_error(int fd) {
  pollfd p{fd, 0, 0};
  poll(&p, 1, kLongestWaitForError);
}

// An address of this host with the port of `name`, in its family.
SocketName of_this_host(const SocketName& name, int domain) {
  SocketName local = name;
  if (domain == AF_INET6) {
    auto& six = reinterpret_cast<sockaddr_in6&>(local.address);
    const bool four = name.length != 0 && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
    six = {};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    if (four) {
      six.sin6_addr = {};
      six.sin6_addr.s6_addr16[5] = 0xffff;
      six.sin6_addr.s6_addr32[3] = htonl(INADDR_LOOPBACK);
    }
    local.length = sizeof(six);
  } else {
    auto& four = reinterpret_cast<sockaddr_in&>(local.address);
    four = {};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    local.length = sizeof(four);
  }
  return local;
}

}  // namespace

// connect(2) had returned EINPROGRESS and failed since. An error that the program has read already is read
// here.
Result<void> ChannelBuilder::fail_to_connect(ChannelSocket& s) {
  const bool times_out = s.has(kLinkError) && s.link.error == ETIMEDOUT;
  SocketName at = of_this_host(s.name, s.detail.domain);
  // The port is taken, so that nobody else comes to listen there.
  const ScopedFd nobody(socket(s.detail.domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!nobody.valid() || bind(nobody.get(), at.get(), at.length) != 0 ||
      getsockname(nobody.get(), reinterpret_cast<sockaddr*>(&at.address), &at.length) != 0)
    return cannot_make(s);
  if (times_out) {
    drop_all(nobody.get());
    if (listen(nobody.get(), 1) != 0) return cannot_make(s);
  }
  auto failed = [&](const PortOrigin* origin) -> ScopedFd {
    ScopedFd fd(socket(s.detail.domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!fd.valid() || (origin != nullptr && !bind_end(fd.get(), s, s.name, *origin))) return {};
    if (times_out) set_int(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 1);
    if (::connect(fd.get(), at.get(), at.length) != 0 && errno != EINPROGRESS) return {};
    if (origin != nullptr && !has_port(fd.get(), s.name, *origin)) return {};
    wait_for_error(fd.get());
    if (times_out) set_int(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    return fd;
  };
  ScopedFd fd;
  for (const PortOrigin origin : {PortOrigin::kChosen, PortOrigin::kBound})
    if (!fd.valid() && s.name.length != 0) fd = failed(&origin);
  if (!fd.valid()) fd = failed(nullptr);
  if (!fd.valid()) return cannot_make(s);
  if (!s.has(kLinkError)) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  return park(s, std::move(fd));
}

// A datagram to a port at which nobody receives is refused by an ICMP message, which connecting the socket
// elsewhere does not take.
void ChannelBuilder::refuse_datagram(const ChannelSocket& s) {
  SocketName at = of_this_host(s.name, s.detail.domain);
  // The socket `nobody` has the port for itself, and takes datagrams of its peer alone, which is itself.
  const ScopedFd nobody(socket(s.detail.domain, SOCK_DGRAM | SOCK_CLOEXEC, s.detail.protocol));
  const bool refused = nobody.valid() && bind(nobody.get(), at.get(), at.length) == 0 &&
                       getsockname(nobody.get(), reinterpret_cast<sockaddr*>(&at.address), &at.length) == 0 &&
                       ::connect(nobody.get(), at.get(), at.length) == 0 &&
                       ::connect(s.fd, at.get(), at.length) == 0 &&
                       send(s.fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) == 0;
  if (refused) return wait_for_error(s.fd);
  say("{}: the error that waited in it (ECONNREFUSED) cannot be had again ({})", describe(s),
      errno_name(errno));
}

// Before the far end is closed: what the socket gets by that is the error that it had.
void ChannelBuilder::end_with_error(ChannelSocket& s) {
  if (s.has(kLinkError) && s.link.error == ETIMEDOUT) {
    drop_all(s.far_end);
    set_int(s.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1);
    set_int(s.fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (send(s.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) wait_for_error(s.fd);
    set_int(s.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);  // settle() sets what the program had
    set_int(s.fd, IPPROTO_TCP, TCP_NODELAY, 0);
    return;
  }
  if (s.has(kLinkError) && s.link.error == EPIPE) shutdown(s.far_end, SHUT_WR);
  const linger at_once{1, 0};
  setsockopt(s.far_end, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

}  // namespace ckpt
