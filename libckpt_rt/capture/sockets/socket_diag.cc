#include "libckpt_rt/capture/sockets/socket_diag.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr uint32_t kEstablished = 1, kSynReceived = 3, kCloseWait = 8, kListen = 10;  // states of TCP
constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// visit(type, value, bytes of it)
template <typename Message, typename Visit>
void for_each_attribute(const Message& message, const nlmsghdr& header, Visit visit) {
  const char* at = reinterpret_cast<const char*>(&message + 1);
  const char* end = reinterpret_cast<const char*>(&header) + header.nlmsg_len;
  while (at + sizeof(nlattr) <= end) {
    auto* attribute = reinterpret_cast<const nlattr*>(at);
    if (attribute->nla_len < sizeof(nlattr) || at + attribute->nla_len > end) break;
    visit(attribute->nla_type, at + sizeof(nlattr), attribute->nla_len - sizeof(nlattr));
    at += (attribute->nla_len + 3u) & ~3u;
  }
}

}  // namespace

Endpoint endpoint_of(const sockaddr_storage& address) {
  Endpoint e{};
  if (address.ss_family == AF_INET6) {
    auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(e.address, &six.sin6_addr, 16);
    e.port = six.sin6_port;
  } else {
    auto& four = reinterpret_cast<const sockaddr_in&>(address);
    std::memcpy(e.address, kMapped, 12);
    std::memcpy(e.address + 12, &four.sin_addr, 4);
    e.port = four.sin_port;
  }
  return e;
}

bool is_ipv4(const Endpoint& e) { return std::memcmp(e.address, kMapped, 12) == 0; }

bool SocketDiag::open() {
  if (buffer_ == nullptr) buffer_ = static_cast<char*>(arena_->allocate(kBufferBytes));
  if (!socket_.valid()) {
    socket_.reset(
        static_cast<int>(sys::call(__NR_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)));
  }
  return buffer_ != nullptr && socket_.valid();
}

template <typename Question, typename Visit>
SocketDiag::Answer SocketDiag::ask_list(Question& question, size_t least, Visit visit) {
  if (!open()) return Answer::kNone;
  question.header = {sizeof(question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
  if (sys::failed(sys::call(__NR_sendto, socket_.get(), &question, sizeof(question), 0, 0L, 0)))
    return Answer::kNone;
  for (;;) {
    // The kernel has the answer ready before sendto and recvfrom return: nothing to wait for.
    const long n = sys::call(__NR_recvfrom, socket_.get(), buffer_, kBufferBytes, MSG_DONTWAIT, 0L, 0L);
    if (n <= 0) return Answer::kInPart;
    auto* header = reinterpret_cast<const nlmsghdr*>(buffer_);
    for (auto left = static_cast<unsigned>(n); NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return Answer::kAll;
      if (header->nlmsg_type == NLMSG_ERROR) return Answer::kInPart;
      if (header->nlmsg_len < NLMSG_LENGTH(least) || visit(*header)) continue;
      socket_.reset();  // with the rest of the answer
      return Answer::kLeft;
    }
  }
}

bool SocketDiag::take_unix(const nlmsghdr& header) {
  auto* message = static_cast<const unix_diag_msg*>(NLMSG_DATA(&header));
  UnixSocketFacts facts{};
  facts.inode = message->udiag_ino;
  facts.state = message->udiag_state;
  bool room = true;
  for_each_attribute(*message, header, [&](uint16_t type, const char* value, size_t length) {
    switch (type) {
      case UNIX_DIAG_PEER:
        facts.has_peer = true;
        std::memcpy(&facts.peer, value, sizeof(facts.peer));
        break;
      case UNIX_DIAG_RQLEN: {
        unix_diag_rqlen lengths;
        std::memcpy(&lengths, value, sizeof(lengths));
        facts.waiting = lengths.udiag_rqueue;
        facts.backlog = lengths.udiag_wqueue;
        break;
      }
      case UNIX_DIAG_VFS: {
        unix_diag_vfs file;
        std::memcpy(&file, value, sizeof(file));
        facts.file = file.udiag_vfs_ino;
        break;
      }
      case UNIX_DIAG_SHUTDOWN:
        facts.shut_down = static_cast<uint8_t>(*value);
        break;
      case UNIX_DIAG_ICONS: {
        auto* copy = static_cast<uint32_t*>(arena_->allocate(length));
        if (copy == nullptr) {
          room = false;
          break;
        }
        std::memcpy(copy, value, length);
        facts.icons = copy;
        facts.icon_count = static_cast<uint32_t>(length / sizeof(uint32_t));
        break;
      }
      default:
        break;
    }
  });
  return room && (facts.inode == 0 || unix_.push_back(facts));
}

bool SocketDiag::read_unix() { return ask_unix(~0u); }
bool SocketDiag::read_unix_listening() { return ask_unix(1u << kListen); }

bool SocketDiag::ask_unix(uint32_t states) {
  unix_.clear();
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } ask{};
  ask.request.sdiag_family = AF_UNIX;
  ask.request.udiag_states = states;
  ask.request.udiag_show = UDIAG_SHOW_VFS | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN | UDIAG_SHOW_ICONS;
  const Answer answer =
      ask_list(ask, sizeof(unix_diag_msg), [&](const nlmsghdr& header) { return take_unix(header); });
  if (answer != Answer::kAll) return false;
  std::sort(unix_.begin(), unix_.end(),
            [](const UnixSocketFacts& a, const UnixSocketFacts& b) { return a.inode < b.inode; });
  return true;
}

const UnixSocketFacts* SocketDiag::find_unix(uint32_t inode) const {
  auto* at = std::lower_bound(unix_.begin(), unix_.end(), inode,
                              [](const UnixSocketFacts& f, uint32_t i) { return f.inode < i; });
  return at != unix_.end() && at->inode == inode ? at : nullptr;
}

// A family that the kernel does not have is none that anybody uses.
template <typename Visit>
bool SocketDiag::dump_internet(uint8_t protocol, uint32_t states, uint16_t port, Visit visit) {
  for (uint8_t family : {AF_INET, AF_INET6}) {
    struct {
      nlmsghdr header;
      inet_diag_req_v2 request;
    } ask{};
    ask.request.sdiag_family = family;
    ask.request.sdiag_protocol = protocol;
    ask.request.idiag_states = states;
    ask.request.id.idiag_sport = port;
    const Answer answer = ask_list(ask, sizeof(inet_diag_msg), [&](const nlmsghdr& header) {
      return visit(*static_cast<const inet_diag_msg*>(NLMSG_DATA(&header)), header);
    });
    if (answer == Answer::kNone || answer == Answer::kLeft) return false;
  }
  return true;
}

namespace {

// Can a socket be bound to it? Then a connection from it has both ends here.
bool is_address_here(const Endpoint& end) {
  const bool four = is_ipv4(end);
  const long fd = sys::call(__NR_socket, four ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
  const ScopedFd probe(static_cast<int>(fd));
  if (!probe.valid()) return true;
  if (four) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    std::memcpy(&name.sin_addr, end.address + 12, sizeof(name.sin_addr));
    return sys::call(__NR_bind, probe.get(), &name, sizeof(name)) != -EADDRNOTAVAIL;
  }
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  std::memcpy(&name.sin6_addr, end.address, sizeof(name.sin6_addr));
  return sys::call(__NR_bind, probe.get(), &name, sizeof(name)) != -EADDRNOTAVAIL;
}

}  // namespace

bool SocketDiag::has_looked_at(uint16_t port) const {
  return std::any_of(unaccepted_.begin(), unaccepted_.end(),
                     [&](const Unaccepted& u) { return u.port == port; });
}

const SocketDiag::Unaccepted* SocketDiag::look_at_unaccepted(uint16_t port) {
  for (const Unaccepted& known : unaccepted_) {
    if (known.port == port) return &known;
  }
  struct Waiting {
    Ends ends;
    bool only_ended;  // its end is all that has come
  };
  ArenaVector<Waiting> waiting(*arena_);
  ArenaVector<Ends> closed(*arena_);
  Unaccepted found{};
  found.port = port;
  uint32_t queued = 0;
  bool under_way = false;  // a connection is being made, and may be in the queue already
  bool room = true;
  const bool asked = dump_internet(
      IPPROTO_TCP, 1u << kEstablished | 1u << kSynReceived | 1u << kCloseWait | 1u << kListen, port,
      [&](const inet_diag_msg& message, const nlmsghdr&) {
        if (message.id.idiag_sport != port) return true;
        if (message.idiag_state == kListen) {
          queued += message.idiag_rqueue;
          ++found.sockets;
          return true;
        }
        if (message.idiag_inode != 0) return true;
        if (message.idiag_state == kSynReceived) {
          under_way = true;
          return true;
        }
        auto end = [&](const uint32_t* address, uint16_t of_port) {
          Endpoint e{};
          const size_t at = message.idiag_family == AF_INET ? 12 : 0;
          if (at != 0) std::memcpy(e.address, kMapped, 12);
          std::memcpy(e.address + at, address, 16 - at);
          e.port = of_port;
          return e;
        };
        room = waiting.push_back({{end(message.id.idiag_dst, message.id.idiag_dport),
                                   end(message.id.idiag_src, message.id.idiag_sport), message.id.idiag_if},
                                  message.idiag_state == kCloseWait && message.idiag_rqueue == 1});
        return room;
      });
  if (!room) return nullptr;
  // A connection that was reset stays in the queue, and is listed nowhere else.
  const auto known = static_cast<uint32_t>(waiting.size());
  if (asked && !under_way && queued > known) found.reset = queued - known;
  for (const Waiting& w : waiting) {
    const TcpFacts client = ask_tcp(w.ends.client, w.ends.server, w.ends.scope);
    if (client.known && client.inode != 0) continue;
    if (!client.known && !is_address_here(w.ends.client))
      found.far = true;
    else if (!w.only_ended)
      found.written = true;
    else if (!closed.push_back(w.ends))
      return nullptr;
  }
  found.closed = closed.span();
  return unaccepted_.push_back(found) ? &unaccepted_.back() : nullptr;
}

bool SocketDiag::list_listening(ArenaVector<Listener>& listeners) {
  return dump_internet(IPPROTO_TCP, 1u << kListen, 0, [&](const inet_diag_msg& message, const nlmsghdr&) {
    return listeners.push_back({message.idiag_inode, message.id.idiag_sport, message.idiag_rqueue});
  });
}

bool SocketDiag::list_unread(uint16_t port, ArenaVector<uint64_t>& connections) {
  bool room = true;
  const bool asked = dump_internet(
      IPPROTO_TCP, 1u << kEstablished | 1u << kCloseWait, port,
      [&](const inet_diag_msg& message, const nlmsghdr&) {
        const uint32_t end = message.idiag_state == kCloseWait ? 1 : 0;  // counts as a byte
        if (message.id.idiag_sport != port || message.idiag_inode != 0 || message.idiag_rqueue <= end)
          return true;
        uint64_t cookie;
        std::memcpy(&cookie, message.id.idiag_cookie, sizeof(cookie));
        room = room && connections.push_back(cookie);
        return true;
      });
  return asked && room;
}

uint8_t SocketDiag::udp_shut_down(uint32_t inode) {
  if (!udp_asked_) {
    udp_asked_ = true;
    dump_internet(IPPROTO_UDP, ~0u, 0, [&](const inet_diag_msg& message, const nlmsghdr& header) {
      const uint8_t* ended = nullptr;
      for_each_attribute(message, header, [&](uint16_t type, const char* value, size_t length) {
        if (type == INET_DIAG_SHUTDOWN && length != 0) ended = reinterpret_cast<const uint8_t*>(value);
      });
      return ended == nullptr || *ended == 0 || udp_.push_back({message.idiag_inode, *ended});
    });
  }
  for (const UdpShutDown& one : udp_) {
    if (one.inode == inode) return one.shut_down;
  }
  return 0;
}

bool SocketDiag::find_connecting(uint32_t inode, int domain, sockaddr_storage& peer, uint32_t& length) {
  constexpr uint32_t kSynSent = 2;
  bool found = false;
  dump_internet(IPPROTO_TCP, 1u << kSynSent, 0, [&](const inet_diag_msg& message, const nlmsghdr&) {
    if (message.idiag_inode != inode) return true;
    peer = {};
    if (domain == AF_INET) {
      auto& four = reinterpret_cast<sockaddr_in&>(peer);
      four.sin_family = AF_INET;
      four.sin_port = message.id.idiag_dport;
      std::memcpy(&four.sin_addr, message.id.idiag_dst, sizeof(four.sin_addr));
      length = sizeof(four);
    } else {
      auto& six = reinterpret_cast<sockaddr_in6&>(peer);
      six.sin6_family = AF_INET6;
      six.sin6_port = message.id.idiag_dport;
      six.sin6_scope_id = message.id.idiag_if;
      auto* address = reinterpret_cast<uint8_t*>(&six.sin6_addr);
      if (message.idiag_family == AF_INET) {
        std::memcpy(address, kMapped, sizeof(kMapped));
        std::memcpy(address + 12, message.id.idiag_dst, 4);
      } else {
        std::memcpy(address, message.id.idiag_dst, sizeof(six.sin6_addr));
      }
      length = sizeof(six);
    }
    found = true;
    return true;
  });
  return found;
}

TcpFacts SocketDiag::ask_tcp(const Endpoint& local, const Endpoint& remote, uint32_t scope) {
  TcpFacts facts{};
  if (!open()) return facts;
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } ask{};
  ask.header = {sizeof(ask), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0};
  const bool four = is_ipv4(local);
  ask.request.sdiag_family = four ? AF_INET : AF_INET6;
  ask.request.sdiag_protocol = IPPROTO_TCP;
  ask.request.idiag_states = ~0u;
  ask.request.idiag_ext = 1u << (INET_DIAG_INFO - 1);
  ask.request.id.idiag_sport = local.port;
  ask.request.id.idiag_dport = remote.port;
  std::memcpy(ask.request.id.idiag_src, local.address + (four ? 12 : 0), four ? 4 : 16);
  std::memcpy(ask.request.id.idiag_dst, remote.address + (four ? 12 : 0), four ? 4 : 16);
  ask.request.id.idiag_if = scope;
  ask.request.id.idiag_cookie[0] = ask.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (sys::failed(sys::call(__NR_sendto, socket_.get(), &ask, sizeof(ask), 0, 0L, 0))) return facts;
  const long n = sys::call(__NR_recvfrom, socket_.get(), buffer_, kBufferBytes, MSG_DONTWAIT, 0L, 0L);
  auto* header = reinterpret_cast<const nlmsghdr*>(buffer_);
  if (n < static_cast<long>(NLMSG_LENGTH(sizeof(inet_diag_msg))) || header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return facts;
  auto* message = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  // A listening socket answers too, where no connection has these ends.
  if (message->id.idiag_dport != remote.port) return facts;
  facts = {true,
           message->idiag_state,
           message->idiag_inode,
           message->idiag_rqueue,
           message->idiag_wqueue,
           false,
           0,
           0};
  for_each_attribute(*message, *header, [&](uint16_t type, const char* value, size_t length) {
    if (type != INET_DIAG_INFO || length < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof(uint64_t)) return;
    tcp_info info{};
    std::memcpy(&info, value, std::min(sizeof(info), length));
    facts.counted = true;
    facts.sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    facts.not_sent = info.tcpi_notsent_bytes;
  });
  return facts;
}

}  // namespace ckpt
