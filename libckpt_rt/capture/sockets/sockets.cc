#include "libckpt_rt/capture/sockets/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/raii_fd.h"
#include "image/format/object_number.h"
#include "libckpt_rt/capture/sockets/noted/group_filters.h"
#include "libckpt_rt/capture/sockets/noted/multicast_choices.h"
#include "libckpt_rt/capture/sockets/refusals.h"
#include "libckpt_rt/core/kernel/file_turn.h"
#include "libckpt_rt/core/preload_rules.h"

// Sockets: what they are, which is whose other end. Looked at in the stop only, on duplicates that do not
// outlive it.

namespace ckpt {
namespace {

constexpr int kMultipathTcp = 262;  // IPPROTO_MPTCP, Linux 5.6

constexpr char kMultipath[] =
    "it is a connection by multipath TCP (IPPROTO_MPTCP), which cannot be saved: close it, or start the "
    "program "
    "with plain TCP (a program in Go: GODEBUG=multipathtcp=0)";
constexpr char kUnknownStream[] =
    "it listens or is connected by a protocol that cannot be saved (SCTP, for example): close it first";

bool is_internet(const SocketState& s) { return s.detail.domain == AF_INET || s.detail.domain == AF_INET6; }

bool has_datagrams(const SocketState& s) {
  return is_internet(s) && s.detail.type == SOCK_DGRAM &&
         (s.detail.protocol == IPPROTO_UDP || s.detail.protocol == IPPROTO_UDPLITE);
}

// Two bytes are the family alone: no name. The port of both kinds of Internet address is at the same place.
uint32_t named_length(const SocketState& s, const sockaddr_storage& address, int length) {
  const bool named = is_internet(s) ? reinterpret_cast<const sockaddr_in*>(&address)->sin_port != 0
                                    : length > static_cast<int>(sizeof(sa_family_t));
  return named ? static_cast<uint32_t>(length) : 0;
}

void read_names(SocketState& s, int socket) {
  int length = sizeof(s.address);
  if (sys::call(__NR_getsockname, socket, &s.address, &length) == 0) {
    s.detail.address_len = named_length(s, s.address, length);
    // Bound to an interface's address, port to come: Internet names without a port count too.
    if (is_internet(s) && s.detail.address_len == 0 && s.detail.protocol != IPPROTO_TCP &&
        !has_datagrams(s)) {
      s.detail.address_len = static_cast<uint32_t>(length);
    }
  }
  length = sizeof(s.peer);
  if (sys::call(__NR_getpeername, socket, &s.peer, &length) == 0)
    s.detail.peer_len = named_length(s, s.peer, length);
}

}  // namespace

Result<void> SocketCapture::look(SocketLook& look) {
  group_filters::begin();
  multicast_choices::begin();
  // files_.entries() grows: what is found in messages is looked at too.
  for (size_t i = 0; i < files_.entries().size(); ++i) {
    const CapturedDescriptor& d = files_.entries()[i];
    if (!S_ISSOCK(d.now.mode) || (d.now.open_flags & O_PATH) != 0 || d.shares) continue;
    if (d.in_flight) {
      bool known = false;
      for (const SocketState& other : look.sockets)
        known = known || files_.entries()[other.entry].now.inode == d.now.inode;
      if (known) continue;
    }
    ScopedFd socket(access_.borrow(d));
    if (!socket.valid()) continue;  // stays kOther, and a note says so
    const FileTurn turn(socket.get());
    if (!turn.taken()) return has_no_turn(d);
    SocketState s{};
    s.entry = static_cast<uint32_t>(i);
    CKPT_TRY(look_at_socket(look, s, socket.get()));
    if (!look.sockets.push_back(s)) return arena_full(files_.arena());
  }
  if (partners_.over_hosts()) CKPT_TRY(unsent_.drain_to_other_hosts(look, partners_.drained));
  if (partners_.any) CKPT_TRY(unsent_.let_senders_send(look));
  return connections_.look(look);
}

Result<void> SocketCapture::look_at_socket(SocketLook& look, SocketState& s, int socket) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  SocketDetail& detail = s.detail;
  detail.domain = socket_option(socket, SOL_SOCKET, SO_DOMAIN);
  detail.type = socket_option(socket, SOL_SOCKET, SO_TYPE);
  detail.protocol = socket_option(socket, SOL_SOCKET, SO_PROTOCOL);
  detail.backlog = s.link.peek_offset = -1;
  d.kind = OpenFileKind::kOther;
  d.value = 0;
  pollfd ready{socket, POLLIN | POLLPRI | POLLRDHUP, 0};
  sys::call(__NR_poll, &ready, 1L, 0L);
  s.ready = ready.revents;
  if (detail.domain == AF_UNIX) {
    CKPT_TRY(look_at_unix(look, s, socket));
  } else if (is_internet(s) && detail.type == SOCK_STREAM &&
             (detail.protocol == IPPROTO_TCP || detail.protocol == kMultipathTcp)) {
    CKPT_TRY(look_at_tcp(look, s, socket));
  } else if (has_datagrams(s)) {
    CKPT_TRY(look_at_datagrams(look, s, socket));
  } else if (is_internet(s) || detail.domain == AF_NETLINK || detail.domain == AF_PACKET) {
    CKPT_TRY(look_at_other(s, socket));
  }
  if (d.kind == OpenFileKind::kOther) return {};
  CKPT_TRY(read_state(look, s, socket));
  CKPT_TRY(put_options(look, s, socket));
  const bool messages = detail.domain == AF_UNIX ? detail.backlog < 0 : has_datagrams(s);
  return messages && (s.ready & (POLLIN | POLLERR)) != 0 ? messages_.peek(look, s, socket) : Result<void>();
}

Result<void> SocketCapture::look_at_unix(SocketLook& look, SocketState& s, int socket) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
  if (!look.unix_asked) {
    look.unix_asked = true;
    look.unix_known = look.diag.read_unix();
  }
  s.facts = look.unix_known ? look.diag.find_unix(static_cast<uint32_t>(d.now.inode)) : nullptr;
  if (s.facts == nullptr) return {};
  take_unix_facts(look, s, socket);
  if (s.abandoned) CKPT_TRY(forbid_until_accepted(notes_, kAbandoned, d));
  if (s.detail.type == SOCK_STREAM && (s.ready & POLLPRI) != 0)
    CKPT_TRY(forbid_for_now(notes_, kUrgentOfUnix, d));
  int unreceived = 0;
  if ((s.link.flags & kLinkUnaccepted) != 0 && sys::call(__NR_ioctl, socket, SIOCOUTQ, &unreceived) == 0 &&
      unreceived != 0) {
    CKPT_TRY(forbid_until_accepted(notes_, kUnaccepted, d));
  }
  return {};
}

Result<void> SocketCapture::look_at_tcp(SocketLook& look, SocketState& s, int socket) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  tcp_info info{};
  int length = sizeof(info);
  if (sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length))) return {};
  s.link.state = info.tcpi_state;
  s.link.flags |= who_connected(socket) | window_came_first(socket);
  if (info.tcpi_state == TCP_LISTEN) {
    s.detail.backlog = static_cast<int32_t>(info.tcpi_sacked);
    s.waiting = info.tcpi_unacked;
    if (s.waiting != 0) CKPT_TRY(look_at_unaccepted(look, s, socket));
  } else {
    // A closed one was connected if it is shut down: a new one is not.
    s.connection = info.tcpi_state != TCP_CLOSE || (s.ready & POLLRDHUP) != 0;
    // A connection that such a listener has accepted is of plain TCP, unless both ends know the protocol.
    if (s.connection && s.detail.protocol == kMultipathTcp) {
      s.connection = false;
      return notes_.add(kNoRestart, "descriptor {} ({}): {}", d.fd, d.path, kMultipath);
    }
    // In a connection that goes on nothing else waits than stamps, or errors that end nothing (IP_RECVERR).
    if ((s.ready & POLLERR) != 0 && info.tcpi_state == TCP_CLOSE) s.link.flags |= kLinkError;
  }
  d.kind = s.connection ? OpenFileKind::kConnection : OpenFileKind::kSocket;
  return {};
}

Result<void> SocketCapture::look_at_datagrams(SocketLook& look, SocketState& s, int socket) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  d.kind = OpenFileKind::kSocket;
  if (s.detail.protocol == IPPROTO_UDP)
    s.detail.shut_down = look.diag.udp_shut_down(static_cast<uint32_t>(d.now.inode));
  constexpr int kUdpCork = 1;
  int unsent = 0;
  if (socket_option(socket, IPPROTO_UDP, kUdpCork) != 0 &&
      sys::call(__NR_ioctl, socket, SIOCOUTQ, &unsent) == 0 && unsent != 0)
    CKPT_TRY(forbid_for_now(notes_, kCorked, d));
  return {};
}

// Of raw sockets, netlink, packets and what else there is.
Result<void> SocketCapture::look_at_other(SocketState& s, int socket) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  d.kind = OpenFileKind::kSocket;
  sockaddr_storage other{};
  int size = sizeof(other);
  if (is_internet(s) && (s.detail.type == SOCK_STREAM || s.detail.type == SOCK_SEQPACKET) &&
      (socket_option(socket, SOL_SOCKET, SO_ACCEPTCONN) != 0 ||
       sys::call(__NR_getpeername, socket, &other, &size) == 0)) {
    CKPT_TRY(notes_.add(kNoRestart, "descriptor {} ({}): {}", d.fd, d.path, kUnknownStream));
  }
  return name_waiting(s);
}

Result<void> SocketCapture::read_state(SocketLook& look, SocketState& s, int socket) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
  SocketDetail& detail = s.detail;
  detail.reuse_address = socket_option(socket, SOL_SOCKET, SO_REUSEADDR);
  detail.reuse_port = socket_option(socket, SOL_SOCKET, SO_REUSEPORT);
  detail.keep_alive = socket_option(socket, SOL_SOCKET, SO_KEEPALIVE);
  detail.send_buffer = socket_option(socket, SOL_SOCKET, SO_SNDBUF);
  detail.receive_buffer = socket_option(socket, SOL_SOCKET, SO_RCVBUF);
  s.link.buffer_lock = static_cast<uint32_t>(socket_option(socket, SOL_SOCKET, kSoBufLock));
  detail.pass_credentials = detail.domain == AF_UNIX || detail.domain == AF_NETLINK
                                ? socket_option(socket, SOL_SOCKET, SO_PASSCRED)
                                : 0;
  detail.ipv6_only = detail.domain == AF_INET6 ? socket_option(socket, IPPROTO_IPV6, IPV6_V6ONLY) : 0;
  read_names(s, socket);
  if (has_datagrams(s) && (s.ready & POLLERR) != 0 && detail.peer_len != 0 &&
      !queues_errors(socket, detail)) {
    s.link.flags |= kLinkError;
    s.link.error = ECONNREFUSED;
  }
  if (s.connection && s.link.state == TCP_SYN_SENT)
    look.diag.find_connecting(static_cast<uint32_t>(d.now.inode), detail.domain, s.peer, detail.peer_len);
  if (detail.domain == AF_UNIX && !look_at_file(s, s.facts->file, files_.arena()))
    return arena_full(files_.arena());
  // The other end was closed with bytes unread: the first read here returns that error.
  if (detail.domain == AF_UNIX && (s.link.flags & kLinkPeerGone) != 0 && (s.ready & POLLERR) != 0)
    s.link.flags |= kLinkError;
  int peek_offset = -1, length = sizeof(peek_offset);
  if (sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &peek_offset, &length) == 0)
    s.link.peek_offset = peek_offset;
  return {};
}

Result<void> SocketCapture::put_options(SocketLook& look, SocketState& s, int socket) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
  const SocketDetail& detail = s.detail;
  s.options_at = look.options.size();
  put_socket_options(look.options, socket, detail, s.connection);
  if (has_hidden_filter(socket)) {
    CKPT_TRY(notes_.add(
        kChanged,
        "descriptor {} ({}): a program of eBPF decides what it takes (SO_ATTACH_BPF), which nobody can "
        "read: after a restart it takes all",
        d.fd, d.path));
  }
  if (is_internet(s) && !multicast_choices::put(look.options, socket, d.in_flight ? -1 : d.fd)) {
    CKPT_TRY(
        notes_.add(kChanged,
                   "descriptor {} ({}): by which interface it sends to groups is not known: too many sockets "
                   "have one (IP_MULTICAST_IF)",
                   d.fd, d.path));
  }
  if (detail.reuse_port != 0 &&
      group_filters::put(look.options, socket, d.in_flight ? -1 : d.fd) == group_filters::Put::kUnknown) {
    CKPT_TRY(notes_.add(
        kChanged,
        "descriptor {} ({}): a program of eBPF, or one of too many, chooses in its group of sockets "
        "(SO_REUSEPORT) who gets what comes: after a restart the kernel does",
        d.fd, d.path));
  }
  constexpr int kPacketFanout = 18, kByProgram = 6, kByEbpf = 7;  // PACKET_FANOUT and two of its kinds
  const int fanout =
      detail.domain == AF_PACKET ? socket_option(socket, SOL_PACKET, kPacketFanout) >> 16 & 0xff : 0;
  if (fanout == kByProgram || fanout == kByEbpf) {
    CKPT_TRY(notes_.add(
        kChanged,
        "descriptor {} ({}): a program (PACKET_FANOUT_DATA) chooses in its group of sockets who gets what "
        "comes: nobody can read it, and after a restart the first of them gets all",
        d.fd, d.path));
  }
  const bool may_be_in_groups = is_internet(s) && detail.type != SOCK_STREAM;
  if (may_be_in_groups &&
      (!put_multicast_groups(look, files_.arena(), socket, false) ||
       (detail.domain == AF_INET6 && !put_multicast_groups(look, files_.arena(), socket, true)))) {
    CKPT_TRY(notes_.add(
        kChanged,
        "descriptor {} ({}): it takes messages to a multicast group from some senders alone: after a "
        "restart from all",
        d.fd, d.path));
  }
  s.options_length = look.options.size() - s.options_at;
  if (!look.options.ok()) return arena_full(files_.arena());
  return {};
}

// Connections that wait in a listening TCP socket. Those whose other end is in the job are described by that
// end.
Result<void> SocketCapture::look_at_unaccepted(SocketLook& look, SocketState& s, int socket) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
  sockaddr_storage at{};
  int size = sizeof(at);
  if (sys::call(__NR_getsockname, socket, &at, &size) != 0) return {};
  const uint16_t port = endpoint_of(at).port;
  const bool first = !look.diag.has_looked_at(port);
  const SocketDiag::Unaccepted* const found = look.diag.look_at_unaccepted(port);
  if (found == nullptr) return arena_full(files_.arena());
  // In a job over several hosts the client may be of the job.
  const bool hosts = partners_.over_hosts();
  if (found->written || (hosts && (found->far || !found->closed.empty())))
    return forbid_until_accepted(notes_, hosts ? kAbandonedOrFar : kAbandoned, d);
  if (found->far) {
    CKPT_TRY(
        notes_.add(kChanged,
                   "descriptor {} ({}): a connection of a client on another host waits in it to be accepted: "
                   "after a restart it is reset",
                   d.fd, d.path));
  }
  if (!first || hosts) return {};
  s.closed = found->closed;
  if (found->reset == 0) return {};
  // Of which of several sockets nobody can tell.
  if (found->sockets != 1) {
    return notes_.add(
        kChanged,
        "descriptor {} ({}): a connection that its client has reset waits to be accepted in one of {} "
        "sockets at this port: it is lost after a restart",
        d.fd, d.path, found->sockets);
  }
  s.reset_count = found->reset;
  return notes_.add(
      kChanged,
      "descriptor {} ({}): a connection that its client has reset waits in it to be accepted: after a "
      "restart it comes from another address",
      d.fd, d.path);
}

// The socket is made anew, without what waits in it: what the kernel has said nobody else can say again.
Result<void> SocketCapture::name_waiting(const SocketState& s) {
  if ((s.ready & POLLIN) == 0) return {};
  const CapturedDescriptor& d = files_.entries()[s.entry];
  if (s.detail.domain == AF_NETLINK)
    notes_.say_passing();  // the program is about to read the answer, as a rule
  return notes_.add(
      kChanged,
      "descriptor {} ({}): messages wait in it, which cannot be saved: they are lost after a restart", d.fd,
      d.path);
}

void SocketCapture::take_unix_facts(const SocketLook& look, SocketState& s, int socket) {
  const UnixSocketFacts& facts = *s.facts;
  CapturedDescriptor& d = files_.entries()[s.entry];
  s.detail.shut_down = facts.shut_down;
  s.waiting = facts.waiting;
  ucred who{};
  int length = sizeof(who);
  if (sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.pid > 0)
    s.made_by = {who.pid, who.uid, who.gid, 0};
  d.kind = OpenFileKind::kSocket;
  if (facts.state == TCP_LISTEN) {
    s.detail.backlog = static_cast<int32_t>(facts.backlog);
    for (uint32_t i = 0; i < facts.icon_count; ++i) s.abandoned = s.abandoned || facts.icons[i] == 0;
    return;
  }
  if (!facts.has_peer) return;
  s.pair = true;
  d.kind = OpenFileKind::kSocketPair;
  if (facts.peer != 0) {
    d.value = s.link.peer = object_number(d.now.device, facts.peer);
    return;
  }
  s.link.flags |= kLinkPeerGone;
  for (const UnixSocketFacts& listener : look.diag.all_unix()) {
    for (uint32_t i = 0; i < listener.icon_count; ++i) {
      if (listener.icons[i] != static_cast<uint32_t>(d.now.inode)) continue;
      s.link.flags = (s.link.flags & ~uint32_t{kLinkPeerGone}) | kLinkUnaccepted;
      s.link.listener = object_number(d.now.device, listener.inode);
      s.link.position = i;
    }
  }
}

}  // namespace ckpt
