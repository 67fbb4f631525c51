// Messages without a byte that wait in datagram and packet sockets. The kernel shows each of them once to a
// look that goes from message to message (SO_PEEK_OFF), and then only the one that is received next. So the
// messages that a look has seen are remembered, and the next look finds by the others which are still there.
//
// Owner:     libckpt_rt, in its own data, so that an image and a forked child have it. A socket is known by
//            its cookie, which no other socket has; a restart forgets all.
// Callers:   the agent, in the stop: begin_look, then of each socket touch, find_unseen and remember, then
//            end_look. After a restart: forget. Never: allocates.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>

#include "libckpt_rt/capture/sockets/socket_look.h"

namespace ckpt::empty_messages {

inline constexpr uint32_t kMostSockets = 32, kMostMessages = 256, kMostEmpty = 32;

void begin_look();
// The socket is still there: what is known of it stays known.
void touch(int socket);

// A message that an earlier look has seen: where it belongs among those that were seen now.
struct Unseen {
  uint32_t before;  // index of what was seen; its count: behind all
  SocketMessageDetail detail;
  const std::byte* address;  // until remember()
  int64_t seen_ns;
};
// seen: what this look has seen, in order. Into `unseen`, in order: what it could not see, and is taken to
// wait still. Returns how many.
uint32_t find_unseen(int socket, std::span<const SocketMessage> seen, std::span<Unseen, kMostEmpty> unseen);
// All that waits, for the next look. False: there is no room for it, and a message of it is without a byte.
bool remember(int socket, std::span<const SocketMessage> all);
// The look has seen all sockets of the process: those that it did not touch are closed.
void end_look();
void forget();

}  // namespace ckpt::empty_messages
