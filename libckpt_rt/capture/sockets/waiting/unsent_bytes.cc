#include "libckpt_rt/capture/sockets/waiting/unsent_bytes.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "image/format/object_number.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

// Connections to other hosts of the job. All threads of all hosts stand. Each end makes room for what the
// other still holds, and waits until its own bytes are acknowledged: what is acknowledged is in the queue of
// the other end. When all have said so, the queues are complete, and are read as those of any connection are.

namespace ckpt {
namespace {

// Without an acknowledgement: longer than the other host may take until it looks at its sockets. This time is
// also longer than a few of the waits before a segment is sent again.
constexpr int64_t kLongestSilence = 1'000'000'000;  // ns

struct FarConnection {
  uint32_t socket;  // index in SocketLook::sockets
  int fd;           // borrowed
  ReceiveRoom room;
  HeldBack held_back;
  int unsent;
};

// Also where the checkpoint is given up.
struct FarConnections {
  ArenaVector<FarConnection> list;
  ~FarConnections() {
    for (const FarConnection& one : list) {
      one.room.put_back();
      hold_back_again(one.fd, one.held_back);
      sys::call(__NR_close, one.fd);
    }
  }
};

}  // namespace

bool is_loopback(const sockaddr_storage& address) {
  const Endpoint e = endpoint_of(address);
  constexpr uint8_t kSix[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return is_ipv4(e) ? e.address[12] == 127 : std::memcmp(e.address, kSix, 16) == 0;
}

Result<void> UnsentBytes::let_senders_send(SocketLook& look) {
  for (const SocketState& s : look.sockets) {
    const CapturedDescriptor& d = files_.entries()[s.entry];
    if (!s.connection || d.in_flight) continue;
    const ScopedFd socket(access_.borrow(d));
    HeldBack held_back;
    if (!socket.valid() || !let_sender_send(socket.get(), held_back)) continue;
    if (!senders_.push_back({s.entry, held_back.cork, held_back.no_delay})) {
      hold_back_again(socket.get(), held_back);
      return arena_full(files_.arena());
    }
  }
  return {};
}

void UnsentBytes::hold_back_senders() {
  for (const Sender& s : senders_) {
    const ScopedFd socket(access_.borrow(files_.entries()[s.entry]));
    if (socket.valid()) hold_back_again(socket.get(), {s.cork, s.no_delay});
  }
  senders_.clear();
}

Result<void> UnsentBytes::drain_to_other_hosts(SocketLook& look, Partners::Drained drained) {
  FarConnections far{ArenaVector<FarConnection>(files_.arena())};
  for (uint32_t i = 0; i < look.sockets.size(); ++i) {
    const SocketState& s = look.sockets[i];
    if (!s.connection || s.detail.address_len == 0 || s.detail.peer_len == 0 || is_loopback(s.peer)) continue;
    const uint32_t scope =
        s.detail.domain == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(s.peer).sin6_scope_id : 0;
    // On this host: of this process, of another of the job's here, or of another part of the job that has
    // come here too. The head can tell the last two apart. A process that has no descriptor of it says
    // nothing.
    const TcpFacts there = look.diag.ask_tcp(endpoint_of(s.peer), endpoint_of(s.address), scope);
    if (there.known && (there.inode == 0 ||
                        files_.has_socket(object_number(files_.entries()[s.entry].now.device, there.inode))))
      continue;
    FarConnection one{};
    one.socket = i;
    one.fd = access_.borrow(files_.entries()[s.entry]);
    if (one.fd < 0) continue;
    if (!far.list.push_back(one)) {
      sys::call(__NR_close, one.fd);
      return arena_full(files_.arena());
    }
    FarConnection& added = far.list.back();
    added.room = ReceiveRoom(added.fd);
    added.room.enlarge();
    added.held_back = send_at_once(added.fd);
  }
  // A connection that leads out of the job may never be drained: others do not wait for it for ever.
  int64_t last = now_ns();
  for (uint64_t before = ~uint64_t{0};;) {
    uint64_t unsent = 0;
    for (FarConnection& one : far.list) {
      // Looking at a byte lets the kernel tell the sender of the room.
      const ScopedPeekOffset offset(one.fd);
      char byte;
      sys::call(__NR_recvfrom, one.fd, &byte, 1L, MSG_PEEK | MSG_DONTWAIT, 0L, 0L);
      if (sys::call(__NR_ioctl, one.fd, SIOCOUTQ, &one.unsent) != 0) one.unsent = 0;
      unsent += static_cast<uint64_t>(one.unsent);
    }
    const int64_t now = now_ns();
    if (unsent != before) last = now;
    before = unsent;
    if (unsent == 0 || now - last > kLongestSilence) break;
  }
  ArenaVector<job::Bookmark> bookmarks(files_.arena());
  for (const FarConnection& one : far.list) {
    const SocketState& s = look.sockets[one.socket];
    tcp_info info{};
    int length = sizeof(info);
    if (sys::failed(sys::call(__NR_getsockopt, one.fd, IPPROTO_TCP, TCP_INFO, &info, &length))) continue;
    const Endpoint local = endpoint_of(s.address), remote = endpoint_of(s.peer);
    job::Bookmark b{};
    std::memcpy(b.local, local.address, sizeof(b.local));
    std::memcpy(b.remote, remote.address, sizeof(b.remote));
    b.local_port = __builtin_bswap16(local.port);
    b.remote_port = __builtin_bswap16(remote.port);
    b.unsent = static_cast<uint32_t>(one.unsent);
    b.sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
    b.received = info.tcpi_bytes_received;
    constexpr int kCloseWait = 8, kLastAck = 9, kClosing = 11;
    b.ended =
        info.tcpi_state == kCloseWait || info.tcpi_state == kLastAck || info.tcpi_state == kClosing ? 1 : 0;
    if (!bookmarks.push_back(b)) return arena_full(files_.arena());
  }
  return drained(bookmarks.span());
}

}  // namespace ckpt
