#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/note.h"

// Sockets that can be made again without anybody outside: Unix pairs inside the process, and those
// without a connection. Looked at in the stop only, on duplicates that do not outlive it.

namespace ckpt {
namespace {

struct UnixFacts {
  bool known = false;
  uint8_t state = 0;  // TCP_*
  bool has_peer = false;
  uint32_t peer = 0;  // inode; 0 when the peer is gone
  uint32_t waiting = 0, backlog = 0;
  uint8_t shut_down = 0;
};

int option(int socket, int level, int name) {
  int value = 0, length = sizeof(value);
  long r = sys::call(__NR_getsockopt, socket, level, name, &value, &length);
  return r < 0 ? 0 : value;
}

struct OptionName {
  int level, name;
  bool zero_when_new = true;  // is left out then
};
constexpr OptionName kOfTcp[] = {{IPPROTO_TCP, TCP_NODELAY},         {IPPROTO_TCP, TCP_CORK},
                                 {IPPROTO_TCP, TCP_KEEPIDLE, false}, {IPPROTO_TCP, TCP_KEEPINTVL, false},
                                 {IPPROTO_TCP, TCP_KEEPCNT, false},  {IPPROTO_TCP, TCP_DEFER_ACCEPT},
                                 {IPPROTO_TCP, TCP_USER_TIMEOUT},    {IPPROTO_TCP, TCP_FASTOPEN}};
constexpr OptionName kOfInternet[] = {{IPPROTO_IP, IP_TOS},
                                      {IPPROTO_IP, IP_TTL, false},
                                      {IPPROTO_IP, IP_PKTINFO},
                                      {IPPROTO_IP, IP_RECVERR},
                                      {IPPROTO_IP, IP_RECVTOS},
                                      {IPPROTO_IP, IP_RECVTTL},
                                      {IPPROTO_IP, IP_MTU_DISCOVER, false},
                                      {IPPROTO_IP, IP_FREEBIND},
                                      {IPPROTO_IP, IP_TRANSPARENT},
                                      {IPPROTO_IP, IP_MULTICAST_IF},
                                      {IPPROTO_IP, IP_MULTICAST_TTL, false},
                                      {IPPROTO_IP, IP_MULTICAST_LOOP, false}};
constexpr int kIpv6Freebind = 78, kIpv6Transparent = 75;  // linux/in6.h
constexpr OptionName kOfInternet6[] = {{IPPROTO_IPV6, IPV6_TCLASS},
                                       {IPPROTO_IPV6, kIpv6Freebind},
                                       {IPPROTO_IPV6, kIpv6Transparent},
                                       {IPPROTO_IPV6, IPV6_UNICAST_HOPS, false},
                                       {IPPROTO_IPV6, IPV6_RECVPKTINFO},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_IF},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, false},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, false}};
// SO_PRIORITY after IP_TOS, which sets it.
constexpr OptionName kOfAll[] = {{SOL_SOCKET, SO_BROADCAST},       {SOL_SOCKET, SO_RCVTIMEO},
                                 {SOL_SOCKET, SO_SNDTIMEO},        {SOL_SOCKET, SO_LINGER},
                                 {SOL_SOCKET, SO_OOBINLINE},       {SOL_SOCKET, SO_RCVLOWAT, false},
                                 {SOL_SOCKET, SO_PRIORITY, false}, {SOL_SOCKET, SO_DONTROUTE},
                                 {SOL_SOCKET, SO_TIMESTAMP},       {SOL_SOCKET, SO_TIMESTAMPNS}};

void put_options(ByteWriter& out, int socket, std::span<const OptionName> names) {
  constexpr uint8_t kZero[sizeof(SocketOptionDetail::value)] = {};
  for (const OptionName& o : names) {
    SocketOptionDetail option{o.level, o.name, sizeof(option.value), 0, {}};
    if (sys::call(__NR_getsockopt, socket, o.level, o.name, option.value, &option.length) != 0) continue;
    if (o.zero_when_new && std::memcmp(option.value, kZero, sizeof(kZero)) == 0) continue;
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketOption), sizeof(option)});
    out.put(option);
  }
}

// Asks the kernel about one Unix socket by its inode (sock_diag(7)).
UnixFacts ask_about(int diag, uint32_t inode) {
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } ask{};
  ask.header = {sizeof(ask), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0};
  ask.request.sdiag_family = AF_UNIX;
  ask.request.udiag_states = ~0u;
  ask.request.udiag_ino = inode;
  ask.request.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN;
  ask.request.udiag_cookie[0] = ask.request.udiag_cookie[1] = ~0u;
  UnixFacts facts;
  if (sys::failed(sys::call(__NR_sendto, diag, &ask, sizeof(ask), 0, 0L, 0))) return facts;
  alignas(nlmsghdr) char answer[1024];
  long n = sys::call(__NR_recvfrom, diag, answer, sizeof(answer), MSG_DONTWAIT, 0L, 0L);
  auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (n < static_cast<long>(NLMSG_LENGTH(sizeof(unix_diag_msg))) || header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return facts;
  auto* message = static_cast<const unix_diag_msg*>(NLMSG_DATA(header));
  facts.known = true;
  facts.state = message->udiag_state;
  const char* at = reinterpret_cast<const char*>(message + 1);
  const char* end = answer + n;
  while (at + sizeof(nlattr) <= end) {
    auto* attribute = reinterpret_cast<const nlattr*>(at);
    if (attribute->nla_len < sizeof(nlattr) || at + attribute->nla_len > end) break;
    const char* value = at + sizeof(nlattr);
    if (attribute->nla_type == UNIX_DIAG_PEER) {
      facts.has_peer = true;
      std::memcpy(&facts.peer, value, sizeof(facts.peer));
    } else if (attribute->nla_type == UNIX_DIAG_RQLEN) {
      unix_diag_rqlen lengths;
      std::memcpy(&lengths, value, sizeof(lengths));
      facts.waiting = lengths.udiag_rqueue;
      facts.backlog = lengths.udiag_wqueue;
    } else if (attribute->nla_type == UNIX_DIAG_SHUTDOWN) {
      facts.shut_down = static_cast<uint8_t>(*value);
    }
    at += (attribute->nla_len + 3u) & ~3u;
  }
  return facts;
}

}  // namespace

Result<void> DescriptorCapture::look_at_sockets_stopped() {
  ScopedFd diag;
  for (auto& d : entries_) {
    if (d.shares || !S_ISSOCK(d.now.mode) || (d.now.open_flags & O_PATH) != 0) continue;
    ScopedFd socket(borrow(d.fd));
    if (!socket.valid()) continue;  // stays kOther, and a note says so
    if (!diag.valid()) {
      diag.reset(
          static_cast<int>(sys::call(__NR_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)));
    }
    CKPT_TRY(look_at_socket(d, socket.get(), diag.get()));
  }
  // Duplicates are of the same kind; they come after the first in order_.
  for (size_t i = 1; i < order_.size(); ++i) {
    auto& d = entries_[order_[i]];
    if (d.shares && S_ISSOCK(d.now.mode)) d.kind = entries_[order_[i - 1]].kind;
  }
  return {};
}

Result<void> DescriptorCapture::look_at_socket(CapturedDescriptor& d, int socket, int diag) {
  SocketDetail detail{};
  detail.domain = option(socket, SOL_SOCKET, SO_DOMAIN);
  detail.type = option(socket, SOL_SOCKET, SO_TYPE);
  detail.protocol = option(socket, SOL_SOCKET, SO_PROTOCOL);
  detail.backlog = -1;
  const bool listening = option(socket, SOL_SOCKET, SO_ACCEPTCONN) != 0;
  const bool internet = detail.domain == AF_INET || detail.domain == AF_INET6;
  bool connected = false;
  uint32_t waiting = 0;
  d.kind = OpenFileKind::kOther;
  d.value = 0;

  if (detail.domain == AF_UNIX) {
    UnixFacts facts = diag < 0 ? UnixFacts{} : ask_about(diag, static_cast<uint32_t>(d.now.inode));
    if (!facts.known) return {};
    detail.shut_down = facts.shut_down;
    waiting = facts.waiting;
    if (listening) detail.backlog = static_cast<int32_t>(facts.backlog);
    if (facts.has_peer) {
      bool here = facts.peer == 0 && detail.type != SOCK_DGRAM;
      for (const auto& other : entries_)
        here = here || (S_ISSOCK(other.now.mode) && other.now.inode == facts.peer);
      if (!here) return {};  // the other end is in another process
      d.kind = OpenFileKind::kSocketPair;
      if (facts.peer != 0) d.value = object_number(d.now.device, facts.peer);
    } else {
      d.kind = OpenFileKind::kSocket;
    }
  } else if (internet && detail.type == SOCK_STREAM && detail.protocol == IPPROTO_TCP) {
    tcp_info info{};
    int length = sizeof(info);
    if (sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length))) return {};
    if (info.tcpi_state != TCP_LISTEN && info.tcpi_state != TCP_CLOSE) return {};
    if (listening) {
      detail.backlog = static_cast<int32_t>(info.tcpi_sacked);
      waiting = info.tcpi_unacked;
    }
    d.kind = OpenFileKind::kSocket;
  } else if (internet && detail.type == SOCK_DGRAM) {
    connected = true;  // if it has a peer, that is an address and nobody's end
    d.kind = OpenFileKind::kSocket;
  } else {
    return {};
  }

  detail.reuse_address = option(socket, SOL_SOCKET, SO_REUSEADDR);
  detail.reuse_port = option(socket, SOL_SOCKET, SO_REUSEPORT);
  detail.keep_alive = option(socket, SOL_SOCKET, SO_KEEPALIVE);
  detail.send_buffer = option(socket, SOL_SOCKET, SO_SNDBUF);
  detail.receive_buffer = option(socket, SOL_SOCKET, SO_RCVBUF);
  detail.pass_credentials = detail.domain == AF_UNIX ? option(socket, SOL_SOCKET, SO_PASSCRED) : 0;
  detail.ipv6_only = detail.domain == AF_INET6 ? option(socket, IPPROTO_IPV6, IPV6_V6ONLY) : 0;
  sockaddr_storage address{}, peer{};
  int length = sizeof(address);
  if (d.kind == OpenFileKind::kSocket && sys::call(__NR_getsockname, socket, &address, &length) == 0) {
    // Two bytes are the family alone: no name. The port of both kinds of Internet address is at the same
    // place.
    const bool named = internet ? reinterpret_cast<sockaddr_in*>(&address)->sin_port != 0 : length > 2;
    if (named) detail.address_len = static_cast<uint32_t>(length);
  }
  length = sizeof(peer);
  if (connected && sys::call(__NR_getpeername, socket, &peer, &length) == 0)
    detail.peer_len = static_cast<uint32_t>(length);

  ByteWriter out(*arena_);
  const uint32_t payload = (sizeof(detail) + detail.address_len + detail.peer_len + 7u) & ~7u;
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocket), payload});
  out.put(detail);
  out.raw(&address, detail.address_len);
  out.raw(&peer, detail.peer_len);
  out.pad_to(8);
  if (detail.domain == AF_INET) put_options(out, socket, kOfInternet);
  if (detail.domain == AF_INET6) put_options(out, socket, kOfInternet6);
  if (internet && detail.type == SOCK_STREAM) put_options(out, socket, kOfTcp);
  put_options(out, socket, kOfAll);
  if (!out.ok()) return arena_full();
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  if (listening && waiting != 0) {
    return note(1, "descriptor {} ({}): {} connections that wait to be accepted are lost", d.fd, d.path,
                waiting);
  }
  return {};
}

// What waits to be received at this end, message by message. MSG_PEEK with an offset reads on without
// taking anything; the offset is put back before the program runs.
Result<void> DescriptorCapture::copy_messages(CapturedDescriptor& d) {
  auto cannot = [&](long error) {
    return make_error(ExitCode::kIo, static_cast<int>(error), "{}", errno_name(static_cast<int>(error)));
  };
  constexpr size_t kMaxMessage = 1 << 20;
  ScopedFd socket(borrow(d.fd));
  if (!socket.valid()) return cannot(socket.get());
  int before = -1, length = sizeof(before), start = 0;
  sys::call(__NR_getsockopt, socket.get(), SOL_SOCKET, SO_PEEK_OFF, &before, &length);
  long r = sys::call(__NR_setsockopt, socket.get(), SOL_SOCKET, SO_PEEK_OFF, &start, sizeof(start));
  if (r < 0) return cannot(r);
  const bool stream = option(socket.get(), SOL_SOCKET, SO_TYPE) == SOCK_STREAM;
  uint64_t number = 0;
  for (;;) {
    auto* bytes = static_cast<std::byte*>(arena_->allocate(kMaxMessage));
    if (bytes == nullptr) {
      r = -ENOMEM;
      break;
    }
    r = sys::call(__NR_recvfrom, socket.get(), bytes, kMaxMessage, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC, 0L,
                  0L);
    if (r <= 0) break;
    if (!stream && static_cast<size_t>(r) > kMaxMessage) {
      r = -EMSGSIZE;
      break;
    }
    const Content message{d.open_file, object_number(d.now.device, d.now.inode), number++, bytes,
                          static_cast<uint64_t>(r)};
    if (!contents_.push_back(message)) {
      r = -ENOMEM;
      break;
    }
  }
  sys::call(__NR_setsockopt, socket.get(), SOL_SOCKET, SO_PEEK_OFF, &before, sizeof(before));
  if (r < 0 && r != -EAGAIN && r != -ECONNRESET) return cannot(r);

  FdInfo info;
  uint64_t in_flight = 0;
  if (read_fdinfo(tid_, d.fd, text_, *arena_, info) > 0 &&
      number_after(info.text, "scm_fds:", 10, in_flight) && in_flight != 0) {
    return note(1, "descriptor {} ({}): {} descriptors sent through it and not received yet are lost", d.fd,
                d.path, in_flight);
  }
  return {};
}

}  // namespace ckpt
