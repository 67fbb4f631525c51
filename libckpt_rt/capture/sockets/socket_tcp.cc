#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <linux/tcp.h>

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

// Bytes of a TCP connection that the sender's end still holds are made to arrive: the receiver's room is made
// larger for a moment. Nothing is read, so nothing can be lost, doubled or reordered.

namespace ckpt {
namespace {

constexpr int64_t kLongestPull = 250'000'000;  // ns without a byte that arrives: more than the shortest wait
                                               // before a segment is sent again

bool tcp_facts(int socket, tcp_info& info) {
  info = {};
  int length = sizeof(info);
  return !sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length));
}

// The other end has ended its stream.
bool has_ended(const tcp_info& info) {
  constexpr int kCloseWait = 8, kLastAck = 9, kClosing = 11;
  return info.tcpi_state == kCloseWait || info.tcpi_state == kLastAck || info.tcpi_state == kClosing;
}

// All that was written into `sender` is in the queue of `receiver`. Bytes that are sent and not yet
// acknowledged may have arrived: the counters of both ends tell. The end of the stream counts as one byte
// received.
bool all_arrived(int receiver, int sender, uint64_t& arrived) {
  tcp_info from, to;
  int unacknowledged = 0;
  if (!tcp_facts(sender, from) || !tcp_facts(receiver, to)) return false;
  arrived = to.tcpi_bytes_received;
  if (sys::call(__NR_ioctl, sender, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0) return true;
  if (from.tcpi_notsent_bytes != 0) return false;
  return from.tcpi_bytes_sent - from.tcpi_bytes_retrans == to.tcpi_bytes_received - (has_ended(to) ? 1 : 0);
}

// How much room a queue needs so that `coming` bytes come into it. Of free room that is less than a sixteenth
// of all the kernel does not tell the sender.
int room_for(int receiver, uint64_t coming) {
  constexpr uint64_t kLeast = 128 << 10;
  int waiting = 0;
  sys::call(__NR_ioctl, receiver, SIOCINQ, &waiting);
  const uint64_t all = static_cast<uint64_t>(waiting) + coming;
  return static_cast<int>(std::min<uint64_t>(all + all / 12 + kLeast, ReceiveRoom::kMuch));
}

// whole(arrived): true when all is there; arrived: a number that grows as bytes come; coming: so many bytes
// are to come.
template <typename Whole>
bool pull(int receiver, uint64_t coming, Whole whole) {
  constexpr int64_t kTooLittle = 5'000'000;  // ns without a byte that arrives
  ReceiveRoom room(receiver);
  room.enlarge(room_for(receiver, coming));
  const ScopedPeekOffset offset(receiver);
  bool all = false, most = false;
  int64_t last = now_ns(CLOCK_MONOTONIC);
  for (uint64_t arrived = 0, before = 0;;) {
    // Looking at a byte lets the kernel tell the sender of the room.
    char byte;
    sys::call(__NR_recvfrom, receiver, &byte, 1L, MSG_PEEK | MSG_DONTWAIT, 0L, 0L);
    if ((all = whole(arrived))) break;
    const int64_t now = now_ns(CLOCK_MONOTONIC);
    if (arrived != before) last = now;
    before = arrived;
    // Small segments take more room than they have bytes.
    if (now - last > kTooLittle && !most) {
      room.enlarge();
      most = true;
    }
    if (now - last > kLongestPull) break;
  }
  room.put_back();
  return all;
}

}  // namespace

// The end that called connect has its SYN counted among the bytes that were acknowledged; the other has not.
uint32_t who_connected(int socket) {
  constexpr int kEstablished = 1, kSynSent = 2, kClose = 7, kCloseWait = 8, kListen = 10;
  tcp_info info;
  int unacknowledged = 0;
  if (!tcp_facts(socket, info) || info.tcpi_state == kListen || info.tcpi_state == kSynSent ||
      info.tcpi_state == kClose || sys::call(__NR_ioctl, socket, SIOCOUTQ, &unacknowledged) != 0)
    return 0;
  const bool ended = info.tcpi_state != kEstablished && info.tcpi_state != kCloseWait;
  const uint64_t sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes +
                        (ended && info.tcpi_notsent_bytes == 0 ? 1 : 0);
  const uint64_t more = info.tcpi_bytes_acked + static_cast<uint64_t>(unacknowledged) - sent;
  return more == 1 ? kLinkConnected : more == 0 ? kLinkAccepted : 0u;
}

// The scale of the window is agreed upon when a connection is made: large enough for the largest window that
// memory allows (tcp_rmem), unless a smaller largest one was set.
uint32_t window_came_first(int socket) {
  constexpr int kBitsWithoutScale = 16;
  tcp_info info;
  const auto window = static_cast<uint32_t>(socket_option(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP));
  const int scale = std::max(static_cast<int>(std::bit_width(window)), kBitsWithoutScale) - kBitsWithoutScale;
  return tcp_facts(socket, info) && info.tcpi_rcv_wscale == scale ? kLinkWindowFirst : 0u;
}

bool let_sender_send(int sender, HeldBack& held_back) {
  int unacknowledged = 0;
  if (sys::call(__NR_ioctl, sender, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0) return false;
  held_back = send_at_once(sender);
  return held_back.any();
}

bool pull_in_flight(int receiver, int sender) {
  uint64_t first = 0;
  if (all_arrived(receiver, sender, first)) return true;
  int coming = 0;
  sys::call(__NR_ioctl, sender, SIOCOUTQ, &coming);
  HeldBack held_back;
  const bool changed = let_sender_send(sender, held_back);
  const bool all = pull(receiver, static_cast<uint64_t>(coming),
                        [&](uint64_t& arrived) { return all_arrived(receiver, sender, arrived); });
  if (changed) hold_back_again(sender, held_back);
  return all;
}

bool pull_from_far(int receiver, SocketDiag& diag, const Endpoint& far, const Endpoint& near,
                   uint32_t scope) {
  uint64_t coming = 0;
  auto whole = [&](uint64_t& arrived) {
    tcp_info info;
    if (!tcp_facts(receiver, info)) return true;
    arrived = info.tcpi_bytes_received;
    const TcpFacts facts = diag.ask_tcp(far, near, scope);
    coming = facts.send_queue;
    if (!facts.known || facts.send_queue == 0) return true;
    // Bytes that have arrived and are not acknowledged yet are here all the same. The end of the stream
    // counts one.
    return facts.counted && facts.not_sent == 0 &&
           facts.sent == info.tcpi_bytes_received - (has_ended(info) ? 1 : 0);
  };
  uint64_t arrived = 0;
  return whole(arrived) || pull(receiver, coming, whole);
}

}  // namespace ckpt
