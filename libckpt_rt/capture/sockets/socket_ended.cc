#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <linux/tcp.h>

#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

// A TCP connection that has ended, or was never made, with an error that the program has not read yet. The
// kernel shows only that there is one (POLLERR); which one it is its counters tell.

namespace ckpt {
namespace {

constexpr uint32_t kNeverMeasured = ~0u;  // tcpi_min_rtt of a socket whose SYN nobody has answered

// The kernel has given up: so many segments or probes had no answer.
bool has_given_up(int socket, const tcp_info& info, bool never_connected) {
  const int user = socket_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT);
  if (user != 0 && (info.tcpi_retransmits != 0 || info.tcpi_probes != 0)) return true;
  if (never_connected) return info.tcpi_retransmits >= socket_option(socket, IPPROTO_TCP, TCP_SYNCNT);
  constexpr int kFewestRetries = 8;  // tcp_orphan_retries and tcp_retries2 (15, or fewer as the wait grows)
  const int probes = socket_option(socket, IPPROTO_TCP, TCP_KEEPCNT);
  const bool alive = socket_option(socket, SOL_SOCKET, SO_KEEPALIVE) != 0;
  return info.tcpi_retransmits >= kFewestRetries || (alive && probes != 0 && info.tcpi_probes >= probes) ||
         info.tcpi_probes >= kFewestRetries;
}

// Something waits in its receive queue, be it an end, or in that of its errors.
bool queues_take_memory(int socket) {
  uint32_t memory[9] = {};  // SO_MEMINFO; the first is what both queues take
  int length = sizeof(memory);
  return sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_MEMINFO, memory, &length) == 0 && memory[0] != 0;
}

// The other end had ended its stream before it reset the connection: an end that nobody has read waits in the
// queue, or is all that was ever received.
bool end_was_received(int socket, const SocketDetail& detail, const tcp_info& info) {
  if (info.tcpi_data_segs_in == 0) return info.tcpi_bytes_received == 1;
  int waiting = 0;
  if (queues_errors(socket, detail)) return false;  // stamps take memory too: nobody can tell
  return sys::call(__NR_ioctl, socket, SIOCINQ, &waiting) == 0 && waiting == 0 && queues_take_memory(socket);
}

// Where the program listens at the port of the connection, it has accepted the connection there.
bool listens_at_port_of(const SocketLook& look, const SocketState& s) {
  constexpr uint32_t kListen = 10;  // TCP_LISTEN
  if (s.detail.address_len == 0) return false;
  const uint16_t port = endpoint_of(s.address).port;
  for (const SocketState& other : look.sockets) {
    if (other.link.state == kListen && other.detail.address_len != 0 &&
        endpoint_of(other.address).port == port)
      return true;
  }
  return false;
}

// Both ends were received, so no reset ended it. Our end counts as a byte that was acknowledged, as does our
// SYN, which only the end that called connect counts; neither counts as sent. The other's end counts as a
// byte received, which shows where no data came.
bool ended_in_order(int socket, const tcp_info& info, bool accepted) {
  const auto sent = static_cast<int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  return static_cast<int64_t>(info.tcpi_bytes_acked) - sent >= (accepted ? 1 : 2) &&
         (info.tcpi_data_segs_in != 0 || info.tcpi_bytes_received == 1) && queues_take_memory(socket);
}

}  // namespace

bool queues_errors(int socket, const SocketDetail& detail) {
  // SOF_TIMESTAMPING_TX_*: hardware, software, scheduler, acknowledged, completed.
  constexpr int kStampsOfSent = 1 | 2 | 1 << 8 | 1 << 9 | 1 << 18;
  return socket_option(socket, IPPROTO_IP, IP_RECVERR) != 0 ||
         (socket_option(socket, SOL_SOCKET, SO_TIMESTAMPING) & kStampsOfSent) != 0 ||
         socket_option(socket, SOL_SOCKET, SO_ZEROCOPY) != 0 ||
         (detail.domain == AF_INET6 && socket_option(socket, IPPROTO_IPV6, IPV6_RECVERR) != 0);
}

bool look_at_ended(const SocketLook& look, SocketState& s, int socket) {
  SocketLinkDetail& link = s.link;
  tcp_info info{};
  int length = sizeof(info);
  if (sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length))) return true;
  const bool never_connected = info.tcpi_min_rtt == kNeverMeasured && info.tcpi_snd_wnd == 0;
  if (never_connected) link.flags |= kLinkNeverConnected;
  if ((link.flags & kLinkError) == 0) return true;
  if (!never_connected && queues_errors(socket, s.detail) &&
      ended_in_order(socket, info, listens_at_port_of(look, s))) {
    link.flags &= ~uint32_t{kLinkError};
    return true;
  }
  const bool was_answered = never_connected && info.tcpi_segs_in != 0;  // by a reset
  if (!was_answered && has_given_up(socket, info, never_connected)) {
    link.error = ETIMEDOUT;
  } else if (never_connected) {
    link.error = ECONNREFUSED;
    return was_answered;  // else there was an ICMP message
  } else {
    link.error = end_was_received(socket, s.detail, info) ? EPIPE : ECONNRESET;
  }
  return true;
}

}  // namespace ckpt
