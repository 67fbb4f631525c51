#include <linux/filter.h>
#include <linux/netlink.h>
#include <netinet/tcp.h>

#include <algorithm>

#include "base/sockets/job_addresses.h"
#include "base/sockets/opened_connection.h"
#include "image/read/open_file_details.h"
#include "restart/channels/channel_builder.h"

// Options of sockets. Some have to be there before bind or connect, most are set when all is in place.

namespace ckpt {
namespace {

bool is_early(int level, int name) {
  if (level == SOL_SOCKET) return name == SO_BINDTODEVICE || name == SO_MARK;
  constexpr int kIpv6Freebind = 78, kIpv6Transparent = 75;  // linux/in6.h
  constexpr int kIpv6FlowinfoSend = 33;  // linux/in6.h: connect(2) takes the label only then
  if (level == IPPROTO_IPV6 &&
      (name == kIpv6Freebind || name == kIpv6Transparent || name == kIpv6FlowinfoSend))
    return true;
  if (level == IPPROTO_IP) return name == IP_FREEBIND || name == IP_TRANSPARENT;
  return level == IPPROTO_TCP && (name == TCP_CONGESTION || name == TCP_MAXSEG || name == TCP_WINDOW_CLAMP);
}

// Datagrams that waited are sent again, and taken, before the other options are set: these are seen in them.
bool is_seen_in_datagrams(int level, int name) {
  if (level == IPPROTO_IP)
    return name == IP_TTL || name == IP_MULTICAST_TTL || name == IP_TOS || name == IP_PKTINFO;
  return level == IPPROTO_IPV6 &&
         (name == IPV6_UNICAST_HOPS || name == IPV6_MULTICAST_HOPS || name == IPV6_TCLASS);
}

using Unset = std::optional<UnsetOption>;

void set(int fd, int level, int name, const void* value, uint32_t length, Unset& unset) {
  if (setsockopt(fd, level, name, value, length) != 0 && !unset) unset = {level, name, errno};
}

// Only what is not already so: some options may be read by everybody, and set only with a right.
void set_if_other(int fd, int level, int name, const void* value, uint32_t length, Unset& unset) {
  uint8_t now[sizeof(SocketOptionDetail::value)] = {};
  socklen_t size = sizeof(now);
  if (getsockopt(fd, level, name, now, &size) == 0 && size == length && std::memcmp(now, value, length) == 0)
    return;
  set(fd, level, name, value, length, unset);
}

// Of a stream they mean nothing and cannot be set; but the kernel gives each accepted connection those of the
// packet that it began with, so the two ends have different ones.
bool is_of_datagrams(int level, int name) {
  return (level == IPPROTO_IP && (name == IP_MULTICAST_TTL || name == IP_MULTICAST_IF)) ||
         (level == IPPROTO_IPV6 && (name == IPV6_MULTICAST_HOPS || name == IPV6_MULTICAST_IF));
}

// 0: it is not recorded.
int recorded_int(const ParsedOpenFile& file, int level, int name) {
  int value = 0;
  for_each_detail<SocketOptionDetail>(file, OpenFileDetail::kSocketOption,
                                      [&](const SocketOptionDetail& o, Blob) {
                                        if (o.level == level && o.name == name)
                                          std::memcpy(&value, o.value, sizeof(value));
                                      });
  return value;
}

bool is_on(const ParsedOpenFile& file, int level, int name) { return recorded_int(file, level, name) != 0; }

// The bytes that wait in the other end were sent without delay (send_messages), and TCP_NODELAY is recorded
// only where it was on. In the stop a member makes the sender send what it holds back: no TCP_CORK, and
// TCP_NODELAY. Members that look at the same socket after that find it so; the first to do it has looked
// before.
void set_what_holds_back(int fd, const ChannelSocket& s, Unset& unset) {
  int cork = is_on(*s.file, IPPROTO_TCP, TCP_CORK), no_delay = is_on(*s.file, IPPROTO_TCP, TCP_NODELAY);
  for (const ParsedOpenFile* other : s.also) {
    cork |= is_on(*other, IPPROTO_TCP, TCP_CORK);
    no_delay &= is_on(*other, IPPROTO_TCP, TCP_NODELAY);
  }
  set_if_other(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof(no_delay), unset);
  set_if_other(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork), unset);
}

void set_recorded(int fd, const ChannelSocket& s, bool early, Unset& unset) {
  for_each_detail<SocketOptionDetail>(
      *s.file, OpenFileDetail::kSocketOption, [&](const SocketOptionDetail& o, Blob) {
        // In the end all of them: ends of connections were made without the early ones.
        const bool comes_early = is_early(o.level, o.name) ||
                                 (s.detail.type == SOCK_DGRAM && is_seen_in_datagrams(o.level, o.name));
        if (o.length > sizeof(o.value) || (early && !comes_early)) return;
        if (s.detail.type == SOCK_STREAM && is_of_datagrams(o.level, o.name)) return;
        if (o.level == IPPROTO_IP && o.name == kIpLocalPortRange && s.name.length != 0) return;
        if (o.level == SOL_SOCKET && o.name == SO_LOCK_FILTER) return;  // lock_filters
        set_if_other(fd, o.level, o.name, o.value, o.length, unset);
      });
  if (!early && s.is_tcp()) set_what_holds_back(fd, s, unset);
}

// This option comes when all sockets of the group are there: set_group_filters.
bool is_of_group(const LongSocketOptionDetail& o) {
  return o.level == SOL_SOCKET && o.name == SO_ATTACH_REUSEPORT_CBPF;
}

void set_long(int fd, const ChannelSocket& s, Unset& unset) {
  for_each_detail<LongSocketOptionDetail>(
      *s.file, OpenFileDetail::kLongSocketOption, [&](const LongSocketOptionDetail& o, Blob rest) {
        if (o.length > rest.size() || is_of_group(o)) return;
        if (o.level == SOL_SOCKET && o.name == SO_ATTACH_FILTER) {
          struct {
            unsigned short count;
            const void* code;
          } program{static_cast<unsigned short>(o.length / 8), rest.data()};
          set(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program), unset);
        } else if (o.level == SOL_NETLINK && o.name == NETLINK_LIST_MEMBERSHIPS) {
          for (uint32_t bit = 0; bit < o.length * 8; ++bit) {
            if ((static_cast<uint8_t>(rest[bit / 8]) >> (bit % 8) & 1) == 0) continue;
            const int group = static_cast<int>(bit + 1);
            set(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group), unset);
          }
        } else {
          set(fd, o.level, o.name, rest.data(), o.length, unset);
        }
      });
}

}  // namespace

bool gives_pidfds(const ChannelSocket& s) {
  constexpr int kPassPidfd = 76;  // SO_PASSPIDFD, Linux 6.5
  return s.detail.domain == AF_UNIX && is_on(*s.file, SOL_SOCKET, kPassPidfd);
}

void set_int(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

void make_room(int fd) {
  constexpr int kRoom = 256 << 20;
  for (int name : {SO_SNDBUFFORCE, SO_SNDBUF})
    if (setsockopt(fd, SOL_SOCKET, name, &kRoom, sizeof(kRoom)) == 0) return;
}

void make_stream_room(int receiver, uint64_t bytes) {
  constexpr uint64_t kMost = 1 << 30, kLeast = 256 << 10;
  const uint64_t room = bytes >= kMost ? kMost : std::min(bytes + bytes / 4 + kLeast, kMost);
  set_int(receiver, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(room));
}

void set_before_connecting(int fd, const ChannelSocket& s) {
  const int size = recorded_int(*s.file, IPPROTO_TCP, TCP_MAXSEG);
  if (size != 0) set_int(fd, IPPROTO_TCP, TCP_MAXSEG, size);
  const int window = s.has(kLinkWindowFirst) ? recorded_int(*s.file, IPPROTO_TCP, TCP_WINDOW_CLAMP) : 0;
  if (window != 0) set_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, window);
}

void set_early_options(int fd, const ChannelSocket& s) {
  // A TCP port may wait: connections of the killed program hold it for a minute, unless both they and this
  // socket say that this is no matter. A port that somebody else listens on is refused all the same.
  set_int(fd, SOL_SOCKET, SO_REUSEADDR, s.is_tcp() ? 1 : s.detail.reuse_address);
  set_int(fd, SOL_SOCKET, SO_REUSEPORT, s.detail.reuse_port);
  if (s.detail.domain == AF_INET6) set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, s.detail.ipv6_only);
  Unset later;  // the rest comes in the end, and says what cannot be set
  set_recorded(fd, s, true, later);
}

std::optional<UnsetOption> set_late_options(int fd, const ChannelSocket& s) {
  const SocketDetail& d = s.detail;
  if (s.is_tcp() || d.domain == AF_UNIX) set_int(fd, SOL_SOCKET, SO_REUSEADDR, d.reuse_address);
  if (s.is_tcp()) set_int(fd, SOL_SOCKET, SO_REUSEPORT, d.reuse_port);
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, d.keep_alive);
  if (d.domain == AF_UNIX) set_int(fd, SOL_SOCKET, SO_PASSCRED, d.pass_credentials);
  // The kernel doubles what it is given. Of a connection that nobody set it for the kernel finds its own way.
  const bool recorded_lock = s.is_tcp() && s.link.state != 0;
  for (int name : {SO_SNDBUF, SO_RCVBUF}) {
    const int value = name == SO_SNDBUF ? d.send_buffer : d.receive_buffer;
    int now = 0;
    socklen_t length = sizeof(now);
    if (getsockopt(fd, SOL_SOCKET, name, &now, &length) == 0 && now == value) continue;
    set_int(fd, SOL_SOCKET, name, value / 2);
    if (getsockopt(fd, SOL_SOCKET, name, &now, &length) == 0 && now != value)
      set_int(fd, SOL_SOCKET, name == SO_SNDBUF ? SO_SNDBUFFORCE : SO_RCVBUFFORCE, value / 2);
  }
  Unset unset;
  set_recorded(fd, s, false, unset);
  if (s.is_tcp()) {
    // For the stop a member may have set it high (libckpt_rt/capture/sockets/waiting/unsent_bytes.cc).
    int low = std::max(recorded_int(*s.file, SOL_SOCKET, SO_RCVLOWAT), 1);
    for (const ParsedOpenFile* other : s.also)
      low = std::min(low, std::max(recorded_int(*other, SOL_SOCKET, SO_RCVLOWAT), 1));
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, low);
  }
  if (recorded_lock) set_int(fd, SOL_SOCKET, kSoBufLock, static_cast<int>(s.link.buffer_lock));
  if (s.link.peek_offset >= 0) set_int(fd, SOL_SOCKET, SO_PEEK_OFF, s.link.peek_offset);
  set_long(fd, s, unset);
  return unset;
}

bool set_group_filters(std::span<const std::unique_ptr<ChannelSocket>> sockets) {
  struct Filter {
    int64_t set_ns;
    int fd;
    Blob code;
  };
  std::vector<Filter> all;
  for (const auto& s : sockets) {
    if (s->fd < 0) continue;
    auto add = [&](const LongSocketOptionDetail& o, Blob rest) {
      int64_t set_ns = 0;
      if (!is_of_group(o) || o.length > rest.size() || o.length < sizeof(set_ns)) return;
      std::memcpy(&set_ns, rest.data(), sizeof(set_ns));
      all.push_back({set_ns, s->fd, rest.subspan(sizeof(set_ns), o.length - sizeof(set_ns))});
    };
    for_each_detail<LongSocketOptionDetail>(*s->file, OpenFileDetail::kLongSocketOption, add);
    for (const ParsedOpenFile* other : s->also)
      for_each_detail<LongSocketOptionDetail>(*other, OpenFileDetail::kLongSocketOption, add);
  }
  // A group has one, whichever of its sockets it was set on: the last.
  std::stable_sort(all.begin(), all.end(),
                   [](const Filter& a, const Filter& b) { return a.set_ns < b.set_ns; });
  Unset unset;
  constexpr int kDetach = 68;  // SO_DETACH_REUSEPORT_BPF; it fails where there is none yet
  for (const Filter& f : all) {
    if (f.code.empty()) {
      set_int(f.fd, SOL_SOCKET, kDetach, 0);
      continue;
    }
    const sock_fprog program{static_cast<unsigned short>(f.code.size() / sizeof(sock_filter)),
                             reinterpret_cast<sock_filter*>(const_cast<std::byte*>(f.code.data()))};
    set(f.fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program), unset);
  }
  return !unset;
}

void lock_filters(std::span<const std::unique_ptr<ChannelSocket>> sockets) {
  for (const auto& s : sockets)
    if (s->fd >= 0 && is_on(*s->file, SOL_SOCKET, SO_LOCK_FILTER))
      set_int(s->fd, SOL_SOCKET, SO_LOCK_FILTER, 1);
}

}  // namespace ckpt
