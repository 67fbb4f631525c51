// What one stop finds out about the program's sockets, before it is written as details of their records.
//
// Owner:     libckpt_rt, sockets: DescriptorCapture::recheck_stopped has one SocketLook for its stop.
// Callers:   the agent, in the stop, on duplicates that do not outlive it.
// Never:     takes a byte, a message or an error out of a socket: see docs/channels.md.
#pragma once

#include <sys/socket.h>

#include "base/memory/bytes.h"
#include "base/sockets/opened_connection.h"
#include "image/format/records/descriptor_records.h"
#include "libckpt_rt/capture/sockets/socket_diag.h"
#include "libckpt_rt/core/kernel/descriptor_limit.h"

namespace ckpt {

struct SocketState {
  uint32_t entry;  // index in OpenFiles::entries()
  SocketDetail detail;
  SocketLinkDetail link;
  SocketFileDetail file;           // mode 0: none
  const char *directory, *now_at;  // of `file`
  SocketPeerDetail made_by;        // pid 0: the kernel does not tell
  const UnixSocketFacts* facts;    // of a Unix socket
  bool connection;                 // TCP, neither listening nor new
  bool pair;                       // Unix, with another end or one that is gone
  short ready;                     // what poll(2) says
  uint32_t waiting;
  bool still_sending;  // TCP: nobody has the other end, but the kernel has not sent all of it yet
  bool abandoned;      // Unix, listening: a client that waits to be accepted is gone
  sockaddr_storage address, peer;
  size_t options_at, options_length;  // in SocketLook::options
  uint32_t first_message, message_count;
  // Listening: connections of clients that are gone. Of several sockets at one port the first has all.
  std::span<const SocketDiag::Ends> closed;
  uint32_t reset_count;
};

struct SocketMessage {
  SocketMessageDetail detail;
  const std::byte* bytes;
  const std::byte* address;
  uint32_t first_file;  // in SocketLook::files
};

struct SocketLook {
  explicit SocketLook(Arena& a) : sockets(a), messages(a), files(a), options(a), diag(a) {}
  ArenaVector<SocketState> sockets;
  ArenaVector<SocketMessage> messages;
  ArenaVector<uint32_t> files;  // indices of OpenFiles::entries()
  ByteWriter options;
  SocketDiag diag;
  std::string_view groups4, groups6;  // /proc/net/igmp, igmp6, once read
  bool unix_asked = false, unix_known = false;
  DescriptorLimitRaised limit;
  std::byte* scratch = nullptr;
  size_t scratch_bytes = 0;
};

int socket_option(int socket, int level, int name);  // 0: there is none
// A program of eBPF decides what the socket takes (SO_ATTACH_BPF).
bool has_hidden_filter(int socket);
bool set_socket_option(int socket, int level, int name, int value);
// The options that a new socket does not have anyway, as details. connection: of TCP.
void put_socket_options(ByteWriter& out, int socket, const SocketDetail& detail, bool connection);

// Its multicast groups, of IPv4 or IPv6, among its options. False: there is one of which it has chosen the
// senders.
bool put_multicast_groups(SocketLook& look, Arena& arena, int socket, bool six);

// The file that a Unix socket is bound to. inode: as UnixSocketFacts::file. False: no memory.
bool look_at_file(SocketState& s, uint32_t inode, Arena& arena);

// The socket has a queue of errors (IP_RECVERR), or of time stamps and the like, which are none. poll(2) says
// POLLERR as long as anything waits in it.
bool queues_errors(int socket, const SocketDetail& detail);
// Which error waits in a TCP socket that has ended, told from its counters: reading it would take it. Into
// flags and error of its link. False: an error waits, and it cannot be told which.
bool look_at_ended(const SocketLook& look, SocketState& s, int socket);

// A look at bytes (MSG_PEEK) moves the read offset of peeks that the program has set (SO_PEEK_OFF; of TCP
// since Linux 6.9). While this lives there is none; then it is where it was.
class ScopedPeekOffset {
 public:
  explicit ScopedPeekOffset(int socket) : socket_(socket) {
    int length = sizeof(offset_);
    const long r = sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &offset_, &length);
    if (r != 0) offset_ = kNone;
    if (offset_ != kNone) set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, kNone);
  }
  ScopedPeekOffset(const ScopedPeekOffset&) = delete;
  ~ScopedPeekOffset() {
    if (offset_ != kNone) set_socket_option(socket_, SOL_SOCKET, SO_PEEK_OFF, offset_);
  }

 private:
  static constexpr int kNone = -1;
  int socket_, offset_ = kNone;
};

// kLinkConnected, kLinkAccepted, or 0: not known.
uint32_t who_connected(int socket);
// kLinkWindowFirst, or 0.
uint32_t window_came_first(int socket);
// Makes the sender send what it holds back (hold_back_again() ends that). False: nothing is unsent, or
// neither option holds it back.
bool let_sender_send(int sender, HeldBack& held_back);
// Makes all that the other end has sent and that has not arrived arrive at `receiver`, and puts the
// receiver's limits back. `sender`: the other end. False: it does not fit.
bool pull_in_flight(int receiver, int sender);
// The same where the other end is in another process: what it holds is asked for by its addresses.
bool pull_from_far(int receiver, SocketDiag& diag, const Endpoint& far, const Endpoint& near, uint32_t scope);

}  // namespace ckpt
