#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <numeric>
#include <optional>
#include <utility>

#include "image/read/open_file_details.h"
#include "restart/channels/channel_builder.h"
#include "restart/channels/group_delivery.h"
#include "restart/channels/made_by.h"
#include "restart/channels/unix_names.h"

// What waited to be received is sent again: by the other end, or, of datagrams, from the address that it came
// from.

namespace ckpt {
namespace {

// The same address in the family of the socket that sends to it.
void as_seen_from(int sender, SocketName& target) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  if (getsockopt(sender, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain == target.family()) return;
  const SocketName was = target;
  target = {};
  if (domain == AF_INET) {
    auto& six = reinterpret_cast<const sockaddr_in6&>(was.address);
    auto& four = reinterpret_cast<sockaddr_in&>(target.address);
    four.sin_family = AF_INET;
    four.sin_port = six.sin6_port;
    four.sin_addr.s_addr =
        IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) ? six.sin6_addr.s6_addr32[3] : htonl(INADDR_LOOPBACK);
    target.length = sizeof(four);
  } else {
    auto& four = reinterpret_cast<const sockaddr_in&>(was.address);
    auto& six = reinterpret_cast<sockaddr_in6&>(target.address);
    six.sin6_family = AF_INET6;
    six.sin6_port = four.sin_port;
    six.sin6_addr.s6_addr32[2] = htonl(0xffff);
    six.sin6_addr.s6_addr32[3] = four.sin_addr.s_addr;
    target.length = sizeof(six);
  }
}

constexpr int kLongestWaitForRoom = 2000;  // ms, of the kernel for its own loopback

uint64_t bytes_of(const ChannelSocket& s) {
  uint64_t bytes = 0;
  for (const auto& m : s.messages) bytes += m.detail.length;
  return bytes;
}

// The program has had it: the mark stays.
void take_urgent_byte(int socket) {
  pollfd urgent{socket, POLLPRI, 0};
  char byte;
  if (poll(&urgent, 1, kLongestWaitForRoom) == 1) recv(socket, &byte, 1, MSG_OOB | MSG_DONTWAIT);
}

// Bytes of the receive queue that are taken, with what the kernel needs for them.
uint32_t received_bytes(int socket) {
  uint32_t figures[16] = {};
  socklen_t length = sizeof(figures);
  constexpr int kReceived = 0;  // SK_MEMINFO_RMEM_ALLOC of linux/sock_diag.h
  return getsockopt(socket, SOL_SOCKET, SO_MEMINFO, figures, &length) == 0 ? figures[kReceived] : 0;
}

// The kernel brings a datagram to a socket of this host at once, as a rule; where a processor has much to do
// its thread for that (ksoftirqd) does it later, and looks only then who is to have it. False: it did not
// come.
bool await_datagram(int socket, uint32_t before, int& left_ms) {
  for (; received_bytes(socket) == before; --left_ms) {
    if (left_ms <= 0) return false;
    usleep(1000);
  }
  return true;
}

// At which the receiver is a member of that group. lo, for IPv4, does as well: only IPv6 has no way to it.
uint32_t interface_of(const ChannelSocket& s, const SocketName& group) {
  uint32_t interface = 0;
  if (s.detail.domain != AF_INET6) return interface;
  for_each_detail<LongSocketOptionDetail>(
      *s.file, OpenFileDetail::kLongSocketOption, [&](const LongSocketOptionDetail& o, Blob rest) {
        group_req joined;
        if (o.name != MCAST_JOIN_GROUP || o.level != IPPROTO_IPV6 || rest.size() < sizeof(joined)) return;
        std::memcpy(&joined, rest.data(), sizeof(joined));
        if (IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(joined.gr_group).sin6_addr,
                               &reinterpret_cast<const sockaddr_in6&>(group.address).sin6_addr))
          interface = joined.gr_interface;
      });
  return interface;
}

// Of sockets that share an address (SO_REUSEPORT, SO_REUSEADDR) the kernel chooses who gets a datagram. A
// socket that is connected to the sender goes before the others. `at`: where it is sent to.
class OnlyReceiver {
 public:
  OnlyReceiver(const ChannelSocket& to, const SocketName& sender, const SocketName& at) {
    if (to.detail.domain == AF_UNIX || sender.length == 0 ||
        (to.detail.reuse_port == 0 && to.detail.reuse_address == 0) ||
        ::connect(to.fd, sender.get(), sender.length) != 0)
      return;
    fd_ = to.fd;
    // A socket that is bound to all addresses has only the address of the sender's network now.
    SocketName here;
    here.length = sizeof(here.address);
    if (getsockname(fd_, reinterpret_cast<sockaddr*>(&here.address), &here.length) != 0 || !(here == at))
      stays_connected_ = !leave();
  }
  OnlyReceiver(const OnlyReceiver&) = delete;

  // After the datagram. False: the socket is still connected to the sender, and takes nothing from others.
  [[nodiscard]] bool leave() {
    const sockaddr nobody{AF_UNSPEC, {}};
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::connect(fd, &nobody, sizeof(nobody)) != 0) stays_connected_ = true;
    return !stays_connected_;
  }

 private:
  int fd_ = -1;
  bool stays_connected_ = false;
};

}  // namespace

Result<void> ChannelBuilder::send_one(ChannelSocket& to, int from, const SocketName* at,
                                      const ChannelMessage& message, const FindOpenFile& find_open_file) {
  const bool stream = to.detail.type == SOCK_STREAM;
  std::vector<iovec> parts;
  for (Blob part : message.parts) {
    parts.push_back({const_cast<std::byte*>(part.data()), part.size()});
  }
  std::vector<int> files;
  for (uint32_t id : message.files) {
    auto fd = find_open_file(to.messages_of, id);
    if (!fd.ok()) return fd.error();
    if (*fd < 0) {
      say("{}: a descriptor that was sent through it cannot be made again: it is left out", describe(to));
    } else {
      files.push_back(*fd);
    }
  }
  std::vector<std::byte> control(CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(files.size() * sizeof(int)));
  msghdr header{};
  if (at != nullptr) {
    header.msg_name = const_cast<sockaddr_storage*>(&at->address);
    header.msg_namelen = at->length;
  }
  auto add_control = [&](int type, const void* data, size_t n) {
    auto* c = reinterpret_cast<cmsghdr*>(control.data() + header.msg_controllen);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(n);
    std::memcpy(CMSG_DATA(c), data, n);
    header.msg_control = control.data();
    header.msg_controllen += CMSG_SPACE(n);
  };
  if (!files.empty()) add_control(SCM_RIGHTS, files.data(), files.size() * sizeof(int));
  ucred who{message.detail.pid, message.detail.uid, message.detail.gid};
  const size_t without = header.msg_controllen;
  if ((message.detail.flags & kMessageCredentials) != 0) add_control(SCM_CREDENTIALS, &who, sizeof(who));
  const int flags =
      MSG_DONTWAIT | MSG_NOSIGNAL | ((message.detail.flags & kMessageUrgent) != 0 ? MSG_OOB : 0);
  size_t first = 0;
  for (uint64_t left = message.detail.length, sent_once = 0; left != 0 || sent_once == 0;) {
    header.msg_iov = parts.data() + first;
    header.msg_iovlen = std::min<size_t>(parts.size() - first, 512);
    // The kernel believes a process what it says of itself.
    const bool names_sender = header.msg_controllen > without;
    const CallAs sent = call_as(names_sender ? who : ucred{},
                                [&](std::array<int, 2>&) { return sendmsg(from, &header, flags); });
    const ssize_t n = sent.result;
    errno = sent.error;
    if (n < 0 && (errno == EPERM || errno == ESRCH) && header.msg_controllen > without) {
      // Another's credentials need a right, and a process that is there: ours then.
      if ((to.detail.pass_credentials != 0 || gives_pidfds(to)) && !std::exchange(to.said_sender, true)) {
        say("{}: what waits in it was sent by process {}, which cannot be named as the sender now ({})",
            describe(to), who.pid, errno_name(errno));
      }
      header.msg_controllen = without;
      if (without == 0) header.msg_control = nullptr;
      continue;
    }
    if (n < 0 && errno == EAGAIN && to.is_tcp()) {
      pollfd room{from, POLLOUT, 0};
      if (poll(&room, 1, kLongestWaitForRoom) == 1) continue;
      errno = EAGAIN;
    }
    if (n < 0 && errno == ENOBUFS && to.detail.domain != AF_UNIX) {
      say("{}: a message that waited in it cannot be sent again ({})", describe(to), errno_name(errno));
      return {};
    }
    if (n < 0) {
      return make_error(ExitCode::kSystem, errno, "the {} bytes in {} do not fit into a new socket ({})",
                        bytes_of(to), describe(to), errno_name(errno));
    }
    sent_once = 1;
    if (!stream) return {};
    header.msg_control = nullptr;  // descriptors go with the first part
    header.msg_controllen = 0;
    left -= static_cast<uint64_t>(n);
    for (auto done = static_cast<size_t>(n); done > 0;) {
      iovec& part = parts[first];
      const size_t now = std::min(done, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + now;
      part.iov_len -= now;
      done -= now;
      if (part.iov_len == 0) ++first;
    }
  }
  return {};
}

Result<void> ChannelBuilder::send_messages(ChannelSocket& to, int from, const FindOpenFile& find_open_file) {
  if (to.is_tcp()) {
    make_stream_room(to.fd, bytes_of(to));
    set_int(from, IPPROTO_TCP, 1 /* TCP_NODELAY */, 1);
  }
  make_room(from);
  // So that a message takes the credentials that it had; what the program wants is set later.
  bool credentials = false;
  for (const auto& m : to.messages) credentials = credentials || (m.detail.flags & kMessageCredentials) != 0;
  if (to.detail.domain == AF_UNIX) set_int(to.fd, SOL_SOCKET, SO_PASSCRED, credentials ? 1 : 0);
  bool is_taken = false;
  for (const auto& m : to.messages) {
    CKPT_TRY(send_one(to, from, nullptr, m, find_open_file));
    is_taken = is_taken || (m.detail.flags & kMessageTaken) != 0;
  }
  if (is_taken) take_urgent_byte(to.fd);
  return {};
}

// The socket that sends the message again. For a sender without a name and a connection any socket will do.
Result<int> ChannelBuilder::sender_of(ChannelSocket& to, const ChannelMessage& m, ScopedFd& own) {
  if (m.sender.length != 0) {
    for (auto& s : sockets_) {
      if (s->fd < 0 || s->detail.type != SOCK_DGRAM || s->detail.domain != to.detail.domain ||
          s->detail.protocol != to.detail.protocol)
        continue;
      if (s->name == m.sender) return s->fd;
    }
  }
  own.reset(socket(to.detail.domain, SOCK_DGRAM | SOCK_CLOEXEC, to.detail.protocol));
  if (!own.valid()) return cannot_make(to);
  if (m.sender.length == 0) return own.get();
  if (to.detail.domain == AF_UNIX) {
    bool unlink_after = false;
    auto bound = bind_name(to, own.get(), m.sender, unlink_after);
    if (unlink_after) leave_over(m.sender, to);
    if (!bound.ok())
      say("{}: a message in it comes from nobody now ({})", describe(to), bound.error().message());
    return own.get();
  }
  set_int(own.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(own.get(), m.sender.get(), m.sender.length) == 0) return own.get();
  // A socket that is bound to all addresses with that port sends from there as well. So does a socket of IPv4
  // to one of IPv6 that takes both, and the other way.
  for (const bool same_family : {true, false}) {
    for (auto& s : sockets_) {
      if (s->fd >= 0 && s->detail.type == SOCK_DGRAM && s->detail.domain != AF_UNIX &&
          (s->detail.domain == to.detail.domain) == same_family && s->detail.protocol == to.detail.protocol &&
          s->name.length != 0 && s->name.port() == m.sender.port())
        return s->fd;
    }
  }
  set_int(own.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  if (bind(own.get(), m.sender.get(), m.sender.length) == 0) return own.get();
  // Another host's address: with CAP_NET_RAW or CAP_NET_ADMIN it can be had as the sender. The message does
  // not leave this host.
  const int transparent = 1;
  const bool six = to.detail.domain == AF_INET6;
  constexpr int kIpv6Transparent = 75;  // linux/in6.h
  if (setsockopt(own.get(), six ? IPPROTO_IPV6 : IPPROTO_IP, six ? kIpv6Transparent : IP_TRANSPARENT,
                 &transparent, sizeof(transparent)) == 0 &&
      bind(own.get(), m.sender.get(), m.sender.length) == 0)
    return own.get();
  return -1;
}

Result<void> ChannelBuilder::send_datagrams(ChannelSocket& to, const FindOpenFile& find_open_file) {
  bool credentials = false;
  for (const auto& m : to.messages) credentials = credentials || (m.detail.flags & kMessageCredentials) != 0;
  if (to.detail.domain == AF_UNIX) {
    set_int(to.fd, SOL_SOCKET, SO_PASSCRED, credentials ? 1 : 0);
  } else {
    make_stream_room(to.fd);
    constexpr int kRoom = 64 << 20;
    if (setsockopt(to.fd, SOL_SOCKET, SO_RCVBUFFORCE, &kRoom, sizeof(kRoom)) != 0)
      set_int(to.fd, SOL_SOCKET, SO_RCVBUF, kRoom);
  }
  SocketName at = to.name;
  if (to.detail.domain == AF_INET && at.length != 0) {
    auto& four = reinterpret_cast<sockaddr_in&>(at.address);
    if (four.sin_addr.s_addr == htonl(INADDR_ANY)) four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else if (to.detail.domain == AF_INET6 && at.length != 0) {
    auto& six = reinterpret_cast<sockaddr_in6&>(at.address);
    if (IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr)) six.sin6_addr = in6addr_loopback;
  }
  const ChannelSocket* mutual = to.peer != nullptr && to.peer->peer == &to && to.name.length != 0 &&
                                        to.peer->name.length != 0 && to.detail.domain == AF_UNIX
                                    ? to.peer
                                    : nullptr;
  std::optional<GroupDelivery> group;
  if (to.detail.domain != AF_UNIX && is_group(at.get())) {
    std::vector<int> others;
    for (const auto& s : sockets_)
      if (s->fd >= 0 && s->detail.type == SOCK_DGRAM && s->detail.domain != AF_UNIX) others.push_back(s->fd);
    group.emplace(to.fd, at.address, interface_of(to, at), others);
  }
  bool joined = false;
  int patience = kLongestWaitForRoom;
  size_t undelivered = 0;
  const int pair_end = to.far_end >= 0 ? to.far_end : to.peer != nullptr ? to.peer->fd : -1;
  size_t lost = 0;
  for (const auto& m : to.messages) {
    if (to.detail.domain == AF_UNIX && (to.name.length == 0 || to.far_end >= 0)) {
      if (pair_end < 0) {
        ++lost;
        continue;
      }
      make_room(pair_end);
      CKPT_TRY(send_one(to, pair_end, nullptr, m, find_open_file));
      continue;
    }
    if (mutual != nullptr && m.sender == mutual->name) {
      // Two that are connected to each other take as much as they have room for, others eleven messages.
      // Messages of others came before: from then on others may not send.
      if (!std::exchange(joined, true)) {
        if (!connect_name(*mutual, to.fd, mutual->name) || !connect_name(to, mutual->fd, to.name))
          return cannot_make(to);
        make_room(mutual->fd);
      }
      CKPT_TRY(send_one(to, mutual->fd, nullptr, m, find_open_file));
      continue;
    }
    ScopedFd own;
    auto from = sender_of(to, m, own);
    if (!from.ok()) return from.error();
    if (*from < 0 || at.length == 0) {
      ++lost;
      continue;
    }
    // IPv4 senders of an IPv6 socket, and the other way, have names of their own family.
    SocketName target = at;
    if (target.family() == AF_INET6 && m.sender.length != 0) {
      auto& six = reinterpret_cast<sockaddr_in6&>(target.address);
      auto& sender = reinterpret_cast<const sockaddr_in6&>(m.sender.address);
      if (IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) && IN6_IS_ADDR_V4MAPPED(&sender.sin6_addr))
        six.sin6_addr = sender.sin6_addr;
    }
    make_room(*from);
    const InDirectory there(is_path(target) ? directory_of(to) : std::string());
    if (target.family() == AF_UNIX) {
      CKPT_TRY(send_one(to, *from, &target, m, find_open_file));
      continue;
    }
    const uint32_t before = received_bytes(to.fd);
    std::optional<OnlyReceiver> only;
    if (!group) only.emplace(to, m.sender, target);
    as_seen_from(*from, target);
    auto send = [&] { return send_one(to, *from, &target, m, find_open_file); };
    const Result<void> sent = group ? group->by(*from, send) : send();
    if (!group) CKPT_TRY(sent);
    if (!sent.ok() || !await_datagram(to.fd, before, patience)) ++undelivered;
    if (only && !only->leave()) return cannot_make(to);
  }
  if (undelivered != 0) {
    say("{}: {} messages that waited in it were sent again, and the kernel did not bring them: they are lost",
        describe(to), undelivered);
  }
  if (lost != 0) {
    say("{}: {} messages in it came from addresses that are not of this host: they are lost", describe(to),
        lost);
  }
  return {};
}

}  // namespace ckpt
