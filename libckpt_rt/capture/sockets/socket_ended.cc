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

// The other end had ended its stream before it reset the connection: an end that nobody has read waits in the
// queue, or is all that was ever received.
bool end_was_received(int socket, const tcp_info& info) {
  if (info.tcpi_data_segs_in == 0) return info.tcpi_bytes_received == 1;
  int waiting = 0;
  uint32_t memory[9] = {};  // SO_MEMINFO; the first is what the receive queue takes
  int length = sizeof(memory);
  return sys::call(__NR_ioctl, socket, SIOCINQ, &waiting) == 0 && waiting == 0 &&
         sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_MEMINFO, memory, &length) == 0 && memory[0] != 0;
}

}  // namespace

bool look_at_ended(int socket, SocketLinkDetail& link) {
  tcp_info info{};
  int length = sizeof(info);
  if (sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length))) return true;
  const bool never_connected = info.tcpi_min_rtt == kNeverMeasured && info.tcpi_snd_wnd == 0;
  if (never_connected) link.flags |= kLinkNeverConnected;
  if ((link.flags & kLinkError) == 0) return true;
  const bool was_answered = never_connected && info.tcpi_segs_in != 0;  // by a reset
  if (!was_answered && has_given_up(socket, info, never_connected)) {
    link.error = ETIMEDOUT;
  } else if (never_connected) {
    link.error = ECONNREFUSED;
    return was_answered;  // else there was an ICMP message
  } else {
    link.error = end_was_received(socket, info) ? EPIPE : ECONNRESET;
  }
  return true;
}

}  // namespace ckpt
