// What waits to be received. MSG_PEEK with an offset (SO_PEEK_OFF) reads on without taking anything; the
// offset and what else was set are put back before the program runs.
//
// Owner:     SocketCapture. Callers: the agent, in the stop, with the turn of the socket (file_turn.h).
// Never:     takes a byte, a message or an error out of a socket.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/capture/sockets/waiting/seen_messages.h"
#include "libckpt_rt/capture/sockets/waiting/sent_files.h"

namespace ckpt {

class WaitingMessages {
 public:
  WaitingMessages(OpenFiles& files, DescriptorNotes& notes, SentFiles& sent)
      : files_(files), notes_(notes), sent_(sent) {}
  WaitingMessages(const WaitingMessages&) = delete;
  WaitingMessages& operator=(const WaitingMessages&) = delete;

  // Of a Unix socket, or one with datagrams. `socket`: a duplicate of it in our table.
  Result<void> peek(SocketLook& look, SocketState& s, int socket);
  // Of a TCP connection.
  Result<void> peek_stream(SocketLook& look, SocketState& s, int socket);

 private:
  // One socket, whose messages are looked at one after the other.
  struct Peek {
    int socket;
    bool stream;
    bool at_first;       // no place is set yet: the next look is without one
    uint64_t total;      // bytes so far
    long error;          // -errno: the next cannot be had
    SeenMessages* seen;  // nullptr: none are remembered
  };
  Result<bool> peek_next(SocketLook& look, SocketState& s, Peek& peek);
  bool keep(SocketLook& look, SocketState& s, const msghdr& header, SocketMessage& message);
  Result<void> keep_seen(SocketLook& look, SocketState& s, SeenMessages& seen, int64_t stamp);
  bool enlarge_scratch(SocketLook& look, size_t bytes);
  Result<void> note_error(const SocketState& s);
  Result<void> take_control(SocketLook& look, const msghdr& header, SocketMessage& message);

  OpenFiles& files_;
  DescriptorNotes& notes_;
  SentFiles& sent_;
};

}  // namespace ckpt
