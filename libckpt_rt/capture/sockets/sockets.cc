#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>

#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/sockets/group_filters.h"
#include "libckpt_rt/capture/sockets/multicast_choices.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/capture/sockets/socket_turn.h"
#include "libckpt_rt/core/preload_rules.h"

// Sockets: what they are, which is whose other end. Looked at in the stop only, on duplicates that do not
// outlive it.

namespace ckpt {
namespace {

constexpr int kMultipathTcp = 262;  // IPPROTO_MPTCP, Linux 5.6

constexpr char kUnaccepted[] =
    "what was sent through it waits in a connection that is not accepted yet, where nobody can read it: ask "
    "again "
    "later";
constexpr char kCorked[] =
    "it holds a datagram that is not whole yet (UDP_CORK), and that nobody can read: ask again later";
constexpr char kUrgentOfUnix[] =
    "an urgent byte (MSG_OOB) waits in it, whose place among the others nobody can see: ask again later";
constexpr char kAbandonedOrFar[] =
    "a connection waits in it to be accepted, of a client that has closed it, or that is on another host: "
    "ask again "
    "later";
constexpr char kMultipath[] =
    "it is a connection by multipath TCP (IPPROTO_MPTCP), which cannot be saved: close it, or start the "
    "program "
    "with plain TCP (a program in Go: GODEBUG=multipathtcp=0)";
constexpr char kUnknownStream[] =
    "it listens or is connected by a protocol that cannot be saved (SCTP, for example): close it first";
constexpr char kAbandoned[] =
    "a connection waits in it to be accepted, and its client has closed it: what it has written can be read "
    "by "
    "nobody: ask again later";

constexpr char kLostStamps[] =
    "descriptor {} ({}): time stamps of what was sent, or errors that end nothing, wait in it: they are lost "
    "after a restart";
constexpr char kUnknownError[] =
    "descriptor {} ({}): an error waits in it that the kernel does not tell (no route, or a time-out): after "
    "a restart "
    "it is ECONNREFUSED";

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

// A socket that is being connected (TCP_SYN_SENT) has no other end yet.
bool has_both_ends(const SocketState& s) {
  return s.connection && s.link.state != TCP_SYN_SENT && s.detail.address_len != 0 && s.detail.peer_len != 0;
}

Error has_no_turn(const CapturedDescriptor& d) {
  return make_error(
      ExitCode::kTimeout, 0,
      "descriptor {} ({}): another process has looked at this socket for longer than 5 s; is its "
      "checkpoint stopped?",
      d.fd, d.path);
}

}  // namespace

Result<void> DescriptorCapture::look_at_sockets(SocketLook& look) {
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
    const SocketTurn turn(socket.get());
    if (!turn.taken()) return has_no_turn(d);
    SocketState s{};
    s.entry = static_cast<uint32_t>(i);
    CKPT_TRY(look_at_socket(look, s, socket.get()));
    if (!look.sockets.push_back(s)) return arena_full(files_.arena());
  }
  CKPT_TRY(drain_to_other_hosts(look));
  return look_at_connections(look);
}

// Only a later checkpoint can have it: when it is accepted, or sent.
Result<void> DescriptorCapture::forbid_for_now(const char* what, const CapturedDescriptor& d) {
  notes_.say_passing();
  return notes_.add(kNoRestart, "descriptor {} ({}): {}", d.fd, d.path, what);
}

Result<void> DescriptorCapture::look_at_socket(SocketLook& look, SocketState& s, int socket) {
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

  const UnixSocketFacts* facts = nullptr;
  if (detail.domain == AF_UNIX) {
    if (!look.unix_asked) {
      look.unix_asked = true;
      look.unix_known = look.diag.read_unix();
    }
    facts = look.unix_known ? look.diag.find_unix(static_cast<uint32_t>(d.now.inode)) : nullptr;
    if (facts == nullptr) return {};
    look_at_unix(look, s, *facts, socket);
    if (s.abandoned) CKPT_TRY(forbid_for_now(kAbandoned, d));
    if (detail.type == SOCK_STREAM && (s.ready & POLLPRI) != 0) CKPT_TRY(forbid_for_now(kUrgentOfUnix, d));
    int unreceived = 0;
    if ((s.link.flags & kLinkUnaccepted) != 0 && sys::call(__NR_ioctl, socket, SIOCOUTQ, &unreceived) == 0 &&
        unreceived != 0) {
      CKPT_TRY(forbid_for_now(kUnaccepted, d));
    }
  } else if (is_internet(s) && detail.type == SOCK_STREAM &&
             (detail.protocol == IPPROTO_TCP || detail.protocol == kMultipathTcp)) {
    tcp_info info{};
    int length = sizeof(info);
    if (sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length))) return {};
    s.link.state = info.tcpi_state;
    s.link.flags |= who_connected(socket) | window_came_first(socket);
    if (info.tcpi_state == TCP_LISTEN) {
      detail.backlog = static_cast<int32_t>(info.tcpi_sacked);
      s.waiting = info.tcpi_unacked;
      if (s.waiting != 0) CKPT_TRY(look_at_unaccepted(look, s, socket));
    } else {
      // A closed one was connected if it is shut down: a new one is not.
      s.connection = info.tcpi_state != TCP_CLOSE || (s.ready & POLLRDHUP) != 0;
      // A connection that such a listener has accepted is of plain TCP, unless both ends know the protocol.
      if (s.connection && detail.protocol == kMultipathTcp) {
        s.connection = false;
        return notes_.add(kNoRestart, "descriptor {} ({}): {}", d.fd, d.path, kMultipath);
      }
      // In a connection that goes on nothing else waits than stamps, or errors that end nothing (IP_RECVERR).
      if ((s.ready & POLLERR) != 0 && info.tcpi_state == TCP_CLOSE) s.link.flags |= kLinkError;
    }
    d.kind = s.connection ? OpenFileKind::kConnection : OpenFileKind::kSocket;
  } else if (has_datagrams(s)) {
    d.kind = OpenFileKind::kSocket;
    if (detail.protocol == IPPROTO_UDP)
      detail.shut_down = look.diag.udp_shut_down(static_cast<uint32_t>(d.now.inode));
    constexpr int kUdpCork = 1;
    int unsent = 0;
    if (socket_option(socket, IPPROTO_UDP, kUdpCork) != 0 &&
        sys::call(__NR_ioctl, socket, SIOCOUTQ, &unsent) == 0 && unsent != 0)
      CKPT_TRY(forbid_for_now(kCorked, d));
  } else if (is_internet(s) || detail.domain == AF_NETLINK || detail.domain == AF_PACKET) {
    d.kind = OpenFileKind::kSocket;
    sockaddr_storage other{};
    int size = sizeof(other);
    if (is_internet(s) && (detail.type == SOCK_STREAM || detail.type == SOCK_SEQPACKET) &&
        (socket_option(socket, SOL_SOCKET, SO_ACCEPTCONN) != 0 ||
         sys::call(__NR_getpeername, socket, &other, &size) == 0)) {
      CKPT_TRY(notes_.add(kNoRestart, "descriptor {} ({}): {}", d.fd, d.path, kUnknownStream));
    }
    CKPT_TRY(name_waiting(s));
  } else {
    return {};
  }

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
  if (detail.domain == AF_UNIX && !look_at_file(s, facts->file, files_.arena()))
    return arena_full(files_.arena());
  // The other end was closed with bytes unread: the first read here returns that error.
  if (detail.domain == AF_UNIX && (s.link.flags & kLinkPeerGone) != 0 && (s.ready & POLLERR) != 0)
    s.link.flags |= kLinkError;
  int peek_offset = -1, length = sizeof(peek_offset);
  if (sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &peek_offset, &length) == 0)
    s.link.peek_offset = peek_offset;
  s.options_at = look.options.size();
  put_socket_options(look.options, socket, detail, s.connection);
  if (has_hidden_filter(socket)) CKPT_TRY(name_hidden_filter(d));
  const bool sends_to_groups = detail.domain == AF_INET || detail.domain == AF_INET6;
  if (sends_to_groups && !multicast_choices::put(look.options, socket, d.in_flight ? -1 : d.fd)) {
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

  const bool messages = detail.domain == AF_UNIX ? detail.backlog < 0 : has_datagrams(s);
  if (messages && (s.ready & (POLLIN | POLLERR)) != 0) return peek_messages(look, s, socket);
  return {};
}

// Connections that wait in a listening TCP socket. Those whose other end is in the job are described by that
// end.
Result<void> DescriptorCapture::look_at_unaccepted(SocketLook& look, SocketState& s, int socket) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
  sockaddr_storage at{};
  int size = sizeof(at);
  if (sys::call(__NR_getsockname, socket, &at, &size) != 0) return {};
  const uint16_t port = endpoint_of(at).port;
  const bool first = !look.diag.has_looked_at(port);
  const SocketDiag::Unaccepted* const found = look.diag.look_at_unaccepted(port);
  if (found == nullptr) return arena_full(files_.arena());
  // In a job over several hosts the client may be of the job.
  const bool hosts = drained_ != nullptr;
  if (found->written || (hosts && (found->far || !found->closed.empty())))
    return forbid_for_now(hosts ? kAbandonedOrFar : kAbandoned, d);
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
Result<void> DescriptorCapture::name_waiting(const SocketState& s) {
  if ((s.ready & POLLIN) == 0) return {};
  const CapturedDescriptor& d = files_.entries()[s.entry];
  if (s.detail.domain == AF_NETLINK)
    notes_.say_passing();  // the program is about to read the answer, as a rule
  return notes_.add(
      kChanged,
      "descriptor {} ({}): messages wait in it, which cannot be saved: they are lost after a restart", d.fd,
      d.path);
}

void DescriptorCapture::look_at_unix(SocketLook& look, SocketState& s, const UnixSocketFacts& facts,
                                     int socket) {
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

// Of TCP connections: the other ends, and what is in flight.
Result<void> DescriptorCapture::look_at_connections(SocketLook& look) {
  if (has_partners_) CKPT_TRY(let_senders_send(look));
  struct Ends {
    Endpoint local, remote;
    uint32_t socket;  // index in look.sockets
  };
  auto less = [](const Ends& a, const Ends& b) { return std::memcmp(&a, &b, offsetof(Ends, socket)) < 0; };
  ArenaVector<Ends> ends(files_.arena());
  for (uint32_t i = 0; i < look.sockets.size(); ++i) {
    const SocketState& s = look.sockets[i];
    if (!has_both_ends(s)) continue;
    Ends e;
    std::memset(static_cast<void*>(&e), 0, sizeof(e));  // padding is compared too
    e.local = endpoint_of(s.address);
    e.remote = endpoint_of(s.peer);
    e.socket = i;
    if (!ends.push_back(e)) return arena_full(files_.arena());
  }
  std::sort(ends.begin(), ends.end(), less);
  for (uint32_t i = 0; i < look.sockets.size(); ++i) {
    SocketState& s = look.sockets[i];
    if (!s.connection) continue;
    CapturedDescriptor& d = files_.entries()[s.entry];
    ScopedFd socket(access_.borrow(d));
    if (s.link.state == TCP_CLOSE && !look_at_ended(look, s, socket.get()))
      CKPT_TRY(notes_.add(kChanged, kUnknownError, d.fd, d.path));
    if ((s.ready & POLLERR) != 0 && (s.link.flags & kLinkError) == 0)
      CKPT_TRY(notes_.add(kChanged, kLostStamps, d.fd, d.path));
    ScopedFd sender;
    const Ends* other = nullptr;  // in `ends`
    Ends reverse;
    if (has_both_ends(s)) {
      std::memset(static_cast<void*>(&reverse), 0, sizeof(reverse));
      reverse.local = endpoint_of(s.peer);
      reverse.remote = endpoint_of(s.address);
      const Ends* found = std::lower_bound(ends.begin(), ends.end(), reverse, less);
      if (found != ends.end() && !less(reverse, *found)) {
        other = found;
        sender.reset(access_.borrow(files_.entries()[look.sockets[other->socket].entry]));
      }
    }
    const SocketTurn turn(socket.get(), sender.valid() ? sender.get() : -1);
    if (!turn.taken()) return has_no_turn(d);
    bool whole = true;
    if (has_both_ends(s)) {
      if (other != nullptr) {
        const CapturedDescriptor& o = files_.entries()[look.sockets[other->socket].entry];
        s.link.peer = object_number(o.now.device, o.now.inode);
        whole = pull_in_flight(socket.get(), sender.get());
      } else {
        CKPT_TRY(look_at_far_end(look, s));
        const uint32_t scope =
            s.detail.domain == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(s.peer).sin6_scope_id : 0;
        // Also from one that its process has closed, and that the kernel still sends from.
        if ((has_partners_ && s.link.peer != 0) || s.still_sending)
          whole = pull_from_far(socket.get(), look.diag, reverse.local, reverse.remote, scope);
      }
    } else {
      s.link.flags |= kLinkPeerGone;
    }
    d.value = s.link.peer;
    // The states in which our end of the stream is already sent.
    const uint32_t state = s.link.state;
    if (state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_LAST_ACK || state == TCP_CLOSING ||
        state == TCP_CLOSE)
      s.detail.shut_down |= 2;
    const bool ended = state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING;
    if (state == TCP_CLOSE || (!ended && (s.ready & POLLRDHUP) != 0)) s.detail.shut_down |= 1;
    if (whole) CKPT_TRY(peek_stream(look, s, socket.get()));
    if (!whole) {
      CKPT_TRY(forbid_for_now("bytes of the connection are in flight and do not arrive: ask again later", d));
      s.link.flags |= kLinkOutside;
      s.link.peer = d.value = 0;
    }
  }
  return {};
}

// The other end is not among the program's descriptors: in another process, closed, or not accepted yet.
Result<void> DescriptorCapture::look_at_far_end(SocketLook& look, SocketState& s) {
  auto& six = reinterpret_cast<const sockaddr_in6&>(s.peer);
  const TcpFacts far = look.diag.ask_tcp(endpoint_of(s.peer), endpoint_of(s.address),
                                         s.detail.domain == AF_INET6 ? six.sin6_scope_id : 0);
  const CapturedDescriptor& d = files_.entries()[s.entry];
  if (!far.known || far.state == TCP_TIME_WAIT) {
    // No process on this host has that end. If it has ended its stream it is gone, else it is on another
    // host.
    const bool ended = s.link.state == TCP_CLOSE_WAIT || s.link.state == TCP_LAST_ACK ||
                       s.link.state == TCP_CLOSING || s.link.state == TCP_CLOSE;
    // Of a job over hosts too: who has the other end there says so (drain_to_other_hosts).
    s.link.flags |= ended && (drained_ != nullptr || is_loopback(s.peer)) ? kLinkPeerGone : kLinkOutside;
    return {};
  }
  if (far.inode != 0) {
    s.link.peer = object_number(d.now.device, far.inode);
    return {};
  }
  if (far.state != TCP_ESTABLISHED && far.state != TCP_CLOSE_WAIT && far.state != 3 /* TCP_SYN_RECV */) {
    s.link.flags |= kLinkPeerGone;  // closed by its process, not yet by the kernel
    s.still_sending = true;
    return {};
  }
  s.link.flags |= kLinkUnaccepted;
  for (const SocketState& listener : look.sockets) {
    if (listener.link.state != TCP_LISTEN || listener.detail.address_len == 0) continue;
    const Endpoint at = endpoint_of(listener.address), wanted = endpoint_of(s.peer);
    constexpr uint8_t kAny[16] = {}, kAny4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
    const bool any = std::memcmp(at.address, kAny, 16) == 0 || std::memcmp(at.address, kAny4, 16) == 0;
    if (at.port != wanted.port || (!any && std::memcmp(at.address, wanted.address, 16) != 0)) continue;
    const CapturedDescriptor& l = files_.entries()[listener.entry];
    s.link.listener = object_number(l.now.device, l.now.inode);
  }
  if (s.link.listener == 0) s.link.flags |= kLinkOutside;
  // The end of the stream counts as a byte.
  if (far.receive_queue == (far.state == TCP_CLOSE_WAIT ? 1u : 0u)) return {};
  return forbid_for_now(kUnaccepted, d);
}

bool DescriptorCapture::is_loopback(const sockaddr_storage& address) {
  const Endpoint e = endpoint_of(address);
  constexpr uint8_t kSix[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return is_ipv4(e) ? e.address[12] == 127 : std::memcmp(e.address, kSix, 16) == 0;
}

}  // namespace ckpt
