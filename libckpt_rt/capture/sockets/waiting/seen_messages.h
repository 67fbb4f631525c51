// Messages without a byte, from one checkpoint to the next. A look that has a place (SO_PEEK_OFF) is shown
// each of them once only; a look without one only the message that comes next. So what an earlier checkpoint
// has seen in a Unix socket is remembered where an empty message was among it.
//
// How it is known what has been received since: a look with SO_TIMESTAMPNS gives a message that has no time
// stamp one, and the message keeps it. Messages are received in their order. The stamp of the next one tells
// its place in what is remembered: those ahead of it are gone, those behind it still wait.
//
// Owner:     WaitingMessages has one for a look at one socket; the memory is the library's own.
// Callers:   the agent, in the stop. Order: the constructor, before() ahead of each message, then add(); at
//            the end before(kEnd) and the destructor.
// Never:     remembers a descriptor that came with a message; more than 64 messages of a socket, 16 sockets.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>

#include "image/format/records/descriptor_records.h"

namespace ckpt {

struct SeenMessage {
  int64_t stamp;  // ns
  SocketMessageDetail detail;
  char address[sizeof(sockaddr_un)];
};

// The time stamp of a message that was looked at; 0: it has none.
int64_t stamp_of(const msghdr& header);

class SeenMessages {
 public:
  static constexpr int64_t kEnd = 0;

  // socket: a Unix socket with messages, a duplicate of it; the look has no place yet.
  explicit SeenMessages(int socket);
  SeenMessages(const SeenMessages&) = delete;
  SeenMessages& operator=(const SeenMessages&) = delete;
  ~SeenMessages();

  // Messages have stamps. False: the program has them stamped in another way, and nothing is remembered.
  bool is_on() const { return on_; }
  // One is there, and it has no byte.
  bool first_is_empty() const { return first_stamp_ != 0 && first_length_ == 0; }
  // The next one that waits ahead of the message with this stamp and is not shown; nullptr: none.
  const SeenMessage* before(int64_t stamp);
  // The kernel has shown it.
  void add(int64_t stamp, const SocketMessageDetail& detail, const void* address);

 private:
  struct Place;
  static Place* places();
  static Place* place_of(uint64_t cookie);
  void keep_last();
  void look_at_first();
  void drop_received();

  int socket_;
  bool on_ = false, was_on_ = false, lost_ = false;
  int64_t first_stamp_ = 0;
  uint64_t first_length_ = 0;
  uint32_t known_ = 0, at_ = 0;  // remembered, and which of them is next
  Place* place_ = nullptr;
};

}  // namespace ckpt
