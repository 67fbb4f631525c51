#include "libckpt_rt/capture/sockets/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/raii_fd.h"
#include "image/format/object_number.h"
#include "libckpt_rt/capture/sockets/refusals.h"
#include "libckpt_rt/capture/sockets/waiting/unsent_bytes.h"
#include "libckpt_rt/core/kernel/file_turn.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr char kLostStamps[] =
    "descriptor {} ({}): time stamps of what was sent, or errors that end nothing, wait in it: they are lost "
    "after a restart";
constexpr char kUnknownError[] =
    "descriptor {} ({}): an error waits in it that the kernel does not tell (no route, or a time-out): after "
    "a restart "
    "it is ECONNREFUSED";

// A socket that is being connected (TCP_SYN_SENT) has no other end yet.
bool has_both_ends(const SocketState& s) {
  return s.connection && s.link.state != TCP_SYN_SENT && s.detail.address_len != 0 && s.detail.peer_len != 0;
}

// What the state of a connection says of its two directions.
void note_shut_down(SocketState& s) {
  // The states in which our end of the stream is already sent.
  const uint32_t state = s.link.state;
  if (state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_LAST_ACK || state == TCP_CLOSING ||
      state == TCP_CLOSE)
    s.detail.shut_down |= 2;
  const bool ended = state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING;
  if (state == TCP_CLOSE || (!ended && (s.ready & POLLRDHUP) != 0)) s.detail.shut_down |= 1;
}

}  // namespace

bool Connections::is_less(const Ends& a, const Ends& b) {
  return std::memcmp(&a, &b, offsetof(Ends, socket)) < 0;
}

// Of all connections with two ends, sorted by them.
Result<void> Connections::list_ends(const SocketLook& look, ArenaVector<Ends>& ends) const {
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
  std::sort(ends.begin(), ends.end(), is_less);
  return {};
}

Result<void> Connections::look(SocketLook& look) {
  ArenaVector<Ends> ends(files_.arena());
  CKPT_TRY(list_ends(look, ends));
  for (SocketState& s : look.sockets) {
    if (s.connection) CKPT_TRY(look_at(look, s, ends.span()));
  }
  return {};
}

Result<void> Connections::look_at(SocketLook& look, SocketState& s, std::span<const Ends> ends) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  ScopedFd socket(access_.borrow(d));
  if (s.link.state == TCP_CLOSE && !look_at_ended(look, s, socket.get()))
    CKPT_TRY(notes_.add(kChanged, kUnknownError, d.fd, d.path));
  if ((s.ready & POLLERR) != 0 && (s.link.flags & kLinkError) == 0)
    CKPT_TRY(notes_.add(kChanged, kLostStamps, d.fd, d.path));
  ScopedFd sender;
  const CapturedDescriptor* other = nullptr;
  Ends reverse;
  if (has_both_ends(s)) {
    std::memset(static_cast<void*>(&reverse), 0, sizeof(reverse));
    reverse.local = endpoint_of(s.peer);
    reverse.remote = endpoint_of(s.address);
    const auto found = std::lower_bound(ends.begin(), ends.end(), reverse, is_less);
    if (found != ends.end() && !is_less(reverse, *found)) {
      other = &files_.entries()[look.sockets[found->socket].entry];
      sender.reset(access_.borrow(*other));
    }
  }
  const FileTurn turn(socket.get(), sender.valid() ? sender.get() : -1);
  if (!turn.taken()) return has_no_turn(d);
  bool whole = true;
  if (!has_both_ends(s)) {
    s.link.flags |= kLinkPeerGone;
  } else if (other != nullptr) {
    s.link.peer = object_number(other->now.device, other->now.inode);
    whole = pull_in_flight(socket.get(), sender.get());
  } else {
    CKPT_TRY(look_at_far_end(look, s));
    const uint32_t scope =
        s.detail.domain == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(s.peer).sin6_scope_id : 0;
    // Also from one that its process has closed, and that the kernel still sends from.
    if ((partners_.any && s.link.peer != 0) || s.still_sending)
      whole = pull_from_far(socket.get(), look.diag, reverse.local, reverse.remote, scope);
  }
  d.value = s.link.peer;
  note_shut_down(s);
  if (whole) return messages_.peek_stream(look, s, socket.get());
  CKPT_TRY(
      forbid_for_now(notes_, "bytes of the connection are in flight and do not arrive: ask again later", d));
  s.link.flags |= kLinkOutside;
  s.link.peer = d.value = 0;
  return {};
}

// The other end is not among the program's descriptors: in another process, closed, or not accepted yet.
Result<void> Connections::look_at_far_end(SocketLook& look, SocketState& s) {
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
    s.link.flags |= ended && (partners_.over_hosts() || is_loopback(s.peer)) ? kLinkPeerGone : kLinkOutside;
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
  return forbid_until_accepted(notes_, kUnaccepted, d);
}

}  // namespace ckpt
