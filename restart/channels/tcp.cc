#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/clock.h"
#include "base/protocol/unaccepted_protocol.h"
#include "image/read/open_file_details.h"
#include "restart/channels/channel_builder.h"
#include "restart/channels/ended_connections.h"
#include "restart/channels/hosts_plan.h"
#include "restart/channels/own_listener.h"

// TCP inside the job: real connections, made again over the loopback with the addresses and ports that they
// had.

namespace ckpt {
namespace {

// The kernel lends the address of a connection that has just ended to a new one after a second
// (tcp_tw_reuse of the loopback).
constexpr int64_t kLongestWaitForPorts = 1'500'000'000;
// To a socket of ours. A queue without room drops what comes, and the client tries again.
constexpr timeval kLongestToOwn{5, 0};

SocketName without_port(SocketName name) {
  reinterpret_cast<sockaddr_in*>(&name.address)->sin_port = 0;
  return name;
}

SocketName loopback(int domain) {
  SocketName name;
  if (domain == AF_INET6) {
    auto& six = reinterpret_cast<sockaddr_in6&>(name.address);
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    name.length = sizeof(six);
  } else {
    auto& four = reinterpret_cast<sockaddr_in&>(name.address);
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.length = sizeof(four);
  }
  return name;
}

SocketName end_of(int fd, bool peer) {
  SocketName name;
  name.length = sizeof(name.address);
  auto* to = reinterpret_cast<sockaddr*>(&name.address);
  if ((peer ? getpeername : getsockname)(fd, to, &name.length) != 0) name.length = 0;
  return name;
}

bool is_connection(const ChannelSocket& s) {
  return s.is_tcp() && static_cast<OpenFileKind>(s.file->record.kind) == OpenFileKind::kConnection;
}

// As AbandonedClientDetail has them.
SocketName name_of(const uint8_t (&address)[16], uint16_t port, uint32_t scope) {
  SocketName name;
  in6_addr six_address;
  std::memcpy(&six_address, address, sizeof(six_address));
  if (IN6_IS_ADDR_V4MAPPED(&six_address)) {
    auto& four = reinterpret_cast<sockaddr_in&>(name.address);
    four.sin_family = AF_INET;
    four.sin_port = port;
    std::memcpy(&four.sin_addr, address + 12, sizeof(four.sin_addr));
    name.length = sizeof(four);
  } else {
    auto& six = reinterpret_cast<sockaddr_in6&>(name.address);
    six.sin6_family = AF_INET6;
    six.sin6_port = port;
    six.sin6_addr = six_address;
    six.sin6_scope_id = scope;
    name.length = sizeof(six);
  }
  return name;
}

bool is_address_here(const SocketName& name) {
  const ScopedFd probe(socket(name.family(), SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP));
  const SocketName any_port = without_port(name);
  return probe.valid() && bind(probe.get(), any_port.get(), any_port.length) == 0;
}

bool is_placeholder(const SocketName& name) {
  const auto& four = reinterpret_cast<const sockaddr_in&>(name.address);
  return four.sin_family == AF_INET && four.sin_addr.s_addr == htonl(kPlaceholderAddress);
}

bool by_age(const ChannelSocket* a, const ChannelSocket* b) {
  return a->file->record.inode < b->file->record.inode;
}

}  // namespace

// Some listening socket of the job has the local port of this connection: it was accepted there.
bool ChannelBuilder::accepts_at(const ChannelSocket& s) const {
  for (const auto& other : sockets_) {
    if (other->is_tcp() && other->detail.backlog >= 0 && other->name.length != 0 &&
        other->name.port() == s.name.port())
      return true;
  }
  return false;
}

// A port that the kernel would not choose it replaces by another, without a word. The other end has that
// connection then: closing it here takes it out of no queue.
bool ChannelBuilder::kernel_chooses(int fd, uint16_t port) {
  if (port == 0) return true;
  const int range = port | port << 16;
  if (setsockopt(fd, IPPROTO_IP, kIpLocalPortRange, &range, sizeof(range)) != 0) return false;
  char text[64] = {};
  const ScopedFd ports(open("/proc/sys/net/ipv4/ip_local_port_range", O_RDONLY | O_CLOEXEC));
  unsigned lowest = 0, highest = 0;
  return read(ports.get(), text, sizeof(text) - 1) > 0 && sscanf(text, "%u %u", &lowest, &highest) == 2 &&
         lowest <= port && port <= highest;
}

bool ChannelBuilder::bind_end(int fd, const ChannelSocket& like, const SocketName& from, PortOrigin origin) {
  SocketName name = from;
  if (origin == PortOrigin::kChosen) {
    name = without_port(from);
    set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  } else {
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (like.detail.reuse_port != 0 || shared_ports_.contains(from.port()))
      set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  }
  return bind(fd, name.get(), name.length) == 0;
}

bool ChannelBuilder::has_port(int fd, const SocketName& from, PortOrigin origin) {
  if (origin == PortOrigin::kBound) return true;
  set_int(fd, IPPROTO_IP, kIpLocalPortRange, 0);
  set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0);
  return from.port() == 0 || end_of(fd, false).port() == from.port();
}

// A socket with the address `from`, connected to `to`. wait: the address may be free again in a second.
// within: no connection takes longer; 0: as long as the kernel likes. own: `to` is this socket; then it has
// the other end.
Result<ScopedFd> ChannelBuilder::connect_from(const ChannelSocket& like, int domain, const SocketName& from,
                                              const SocketName& to, bool wait, timeval within,
                                              OwnListener* own) {
  const auto connects = [&](const ScopedFd& fd) {
    return (own != nullptr ? own->connect(fd.get(), to) : ::connect(fd.get(), to.get(), to.length)) == 0;
  };
  const int64_t until = now_ns(CLOCK_MONOTONIC) + (wait ? kLongestWaitForPorts : 0);
  int error = 0;
  for (;;) {
    for (const PortOrigin origin : {PortOrigin::kChosen, PortOrigin::kBound}) {
      ScopedFd fd(socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
      if (!fd.valid()) return cannot_make(like);
      if (within.tv_sec != 0) setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &within, sizeof(within));
      set_before_connecting(fd.get(), like);
      if (from.length == 0) {
        if (hosts_plan() != nullptr) hosts_plan()->limit_to_slice(fd.get());
        if (connects(fd)) return fd;
        return cannot_make(like);
      }
      if (origin == PortOrigin::kChosen && !kernel_chooses(fd.get(), from.port())) continue;
      const bool bound = bind_end(fd.get(), like, from, origin);
      if (bound && connects(fd)) {
        if (!has_port(fd.get(), from, origin)) continue;
        return fd;
      }
      error = errno;
      // An address of another host: no port of it becomes free here.
      if (!bound && error == EADDRNOTAVAIL) return cannot_make(like);
    }
    if (error == EADDRINUSE || error == EADDRNOTAVAIL) end_ended_connections(from.port());
    if ((error != EADDRINUSE && error != EADDRNOTAVAIL) || now_ns(CLOCK_MONOTONIC) > until) break;
    usleep(20'000);
  }
  errno = error;
  return cannot_make(like);
}

// Both ends. `server` listens, `client` connects; client_sees: how the client names the server.
Result<ChannelBuilder::Ends> ChannelBuilder::establish(const ChannelSocket& like,
                                                       const ChannelSocket& client_like,
                                                       const SocketName& server, const SocketName& client,
                                                       const SocketName& client_sees) {
  ScopedFd listener(socket(server.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!listener.valid()) return cannot_make(like);
  set_before_connecting(listener.get(), like);
  // Its connections inherit this, so that the program's own listening socket can have the port as well.
  set_int(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (like.detail.reuse_port != 0) set_int(listener.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  if (server.family() == AF_INET6) set_int(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (!bind_port(like, listener.get(), server) || listen(listener.get(), kRoomWhileMaking) != 0) {
    return make_error(ExitCode::kUnavailable, errno,
                      "{}: {} cannot be taken again ({}): end the program that has it; connections of the "
                      "killed program without SO_REUSEADDR hold it for a minute",
                      describe(like), server.text(), errno_name(errno));
  }
  SocketName to = client_sees;
  if (to.port() == 0) to = end_of(listener.get(), false);
  OwnListener own(listener.get());
  auto from = connect_from(client_like, to.family(), client, to, true, {}, &own);
  if (!from.ok()) {
    from = connect_from(client_like, to.family(), SocketName{}, to, false, {}, &own);
    if (!from.ok()) return from.error();
    say("{}: {} cannot be had again: the connection has another one", describe(like), client.text());
  }
  Ends ends;
  ends.client = std::move(*from);
  ends.server = own.take_other_end();
  return ends;
}

Result<void> ChannelBuilder::connect_tcp_pair(ChannelSocket& s) {
  ChannelSocket& other = *s.peer;
  const bool connected = s.has(kLinkConnected) || other.has(kLinkAccepted);
  const bool known = connected || s.has(kLinkAccepted) || other.has(kLinkConnected);
  ChannelSocket& server = known ? (connected ? other : s) : accepts_at(s) || !accepts_at(other) ? s : other;
  ChannelSocket& client = &server == &s ? other : s;
  auto ends = establish(server, client, server.name, client.name, client.peer_name);
  if (!ends.ok()) return ends.error();
  CKPT_TRY(park(server, std::move(ends->server)));
  return park(client, std::move(ends->client));
}

// The other end is gone, elsewhere, or has reset the connection.
Result<void> ChannelBuilder::connect_tcp_without_peer(ChannelSocket& s) {
  const bool named = s.has(kLinkPeerGone) && s.name.length != 0 && s.peer_name.length != 0;
  const bool server = named && !s.has(kLinkConnected) && (s.has(kLinkAccepted) || accepts_at(s));
  for (bool with_names : {true, false}) {
    if (with_names && !named) continue;
    const SocketName any = loopback(s.detail.domain);
    auto ends = !with_names ? establish(s, s, any, SocketName{}, any)
                : server    ? establish(s, s, s.name, s.peer_name, s.name)
                            : establish(s, s, s.peer_name, s.name, s.peer_name);
    if (!ends.ok() && with_names) continue;
    if (!ends.ok()) return ends.error();
    CKPT_TRY(park(s, std::move(server && with_names ? ends->server : ends->client)));
    return park_far_end(s, std::move(server && with_names ? ends->client : ends->server));
  }
  return {};
}

Result<void> ChannelBuilder::connect_tcp() {
  std::vector<ChannelSocket*> listening;
  for (auto& s : sockets_) {
    if (!is_connection(*s) || s->fd >= 0 || s->link.state == TCP_SYN_SENT || s->listener != nullptr) continue;
    if (s->has(kLinkNeverConnected)) {
      CKPT_TRY(fail_to_connect(*s));
    } else if (s->peer != nullptr) {
      CKPT_TRY(connect_tcp_pair(*s));
    } else {
      CKPT_TRY(connect_tcp_without_peer(*s));
    }
  }
  for (auto& s : sockets_) {
    if (!s->is_tcp() || s->fd >= 0 || s->detail.backlog < 0) continue;
    // Connections above may have its port.
    const int wanted = s->detail.reuse_address;
    for (auto& other : sockets_)
      if (is_connection(*other) && other->name.port() == s->name.port()) s->detail.reuse_address = 1;
    auto made = make(*s);
    s->detail.reuse_address = wanted;
    CKPT_TRY(made);
    listening.push_back(s.get());
  }
  std::vector<ChannelSocket*> waiting;
  for (auto& s : sockets_)
    if (is_connection(*s) && s->fd < 0) waiting.push_back(s.get());
  // A queue may hold more than its length says: a connection counts for the client before it counts for the
  // queue. And clients that are not of the job may be there first.
  for (ChannelSocket* s : listening) {
    if (listen(s->fd, std::max(s->detail.backlog, kRoomWhileMaking)) != 0) return cannot_make(*s);
  }
  connect_and_close(listening);
  // In the order in which they were made, as far as it can be told. The sockets that were being connected
  // come last, and find the queues as full as they were.
  const auto unfinished = std::stable_partition(
      waiting.begin(), waiting.end(), [](const ChannelSocket* s) { return s->link.state != TCP_SYN_SENT; });
  std::stable_sort(waiting.begin(), unfinished, by_age);
  std::stable_sort(unfinished, waiting.end(), by_age);
  for (auto at = waiting.begin(); at != waiting.end(); ++at) {
    ChannelSocket* s = *at;
    if (at == unfinished) CKPT_TRY(shorten_queues(listening));
    if (s->link.state == TCP_SYN_SENT) {
      ScopedFd fd(socket(s->detail.domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
      if (!fd.valid()) return cannot_make(*s);
      set_early_options(fd.get(), *s);
      if (::connect(fd.get(), s->peer_name.get(), s->peer_name.length) != 0 && errno != EINPROGRESS) {
        say("{}: {} cannot be connected to ({})", describe(*s), s->peer_name.text(), errno_name(errno));
      }
      CKPT_TRY(park(*s, std::move(fd)));
      continue;
    }
    auto fd = connect_from(*s, s->detail.domain, s->name, s->peer_name, true);
    // A placeholder (base/protocol/unaccepted_protocol.h) is known by its address.
    const bool has_port = fd.ok() || is_placeholder(s->name);
    if (!fd.ok()) fd = connect_from(*s, s->detail.domain, without_port(s->name), s->peer_name, false);
    if (!fd.ok()) fd = connect_from(*s, s->detail.domain, SocketName{}, s->peer_name, false);
    if (!fd.ok()) return fd.error();
    if (!has_port)
      say("{}: {} cannot be had again: the connection has another one", describe(*s), s->name.text());
    CKPT_TRY(park(*s, std::move(*fd)));
  }
  return unfinished == waiting.end() ? shorten_queues(listening) : Result<void>();
}

bool ChannelBuilder::connect_and_reset(const ChannelSocket& s) {
  SocketName to = end_of(s.fd, false);
  const auto* four = reinterpret_cast<const sockaddr_in*>(to.get());
  const auto* six = reinterpret_cast<const sockaddr_in6*>(to.get());
  const bool any = to.family() == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr)
                                           : four->sin_addr.s_addr == INADDR_ANY;
  if (any) {
    const auto port = four->sin_port;
    to = loopback(to.family());
    reinterpret_cast<sockaddr_in*>(&to.address)->sin_port = port;
  }
  auto fd = connect_from(s, to.family(), SocketName{}, to, false, kLongestToOwn);
  constexpr linger kReset{1, 0};
  return fd.ok() && setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &kReset, sizeof(kReset)) == 0;
}

// Recreates connections whose clients closed them before accept(2). The image names both ends: a connection
// leads to an address of this host at which a socket of the job listens, or is not made.
void ChannelBuilder::connect_and_close(const std::vector<ChannelSocket*>& listening) {
  std::set<std::pair<std::string, std::string>> made;
  for (const ChannelSocket* s : listening) {
    uint32_t missing = 0;  // behind the first that found no room none is tried: each would wait
    for_each_detail<AbandonedClientDetail>(
        *s->file, OpenFileDetail::kAbandonedClient, [&](const AbandonedClientDetail& d, Blob) {
          if (missing != 0 || d.reset != 0) {
            if (missing != 0 || !connect_and_reset(*s)) ++missing;
            return;
          }
          const SocketName client = name_of(d.client, d.client_port, d.scope),
                           server = name_of(d.server, d.server_port, d.scope);
          // Of each process one of the sockets that listen at a port names the clients of all.
          if (!made.emplace(end_text(client), end_text(server)).second) return;
          // The listener belongs to another program: skip it.
          if (listening_at(server) == nullptr) return;
          if (is_address_here(server)) {
            auto fd = connect_from(*s, client.family(), client, server, true, kLongestToOwn);
            if (fd.ok()) return;
            fd = connect_from(*s, client.family(), SocketName{}, server, false, kLongestToOwn);
            if (fd.ok()) {
              say("{}: a connection that waits to be accepted, and whose client is gone, has another port "
                  "than {}",
                  describe(*s), client.text());
              return;
            }
          }
          ++missing;
        });
    if (missing != 0)
      say("{}: {} connections that waited to be accepted, and whose clients are gone, cannot be made again",
          describe(*s), missing);
  }
}

Result<void> ChannelBuilder::shorten_queues(const std::vector<ChannelSocket*>& listening) {
  for (const ChannelSocket* s : listening) {
    if (listen(s->fd, s->detail.backlog) != 0) return cannot_make(*s);
  }
  return {};
}

}  // namespace ckpt
