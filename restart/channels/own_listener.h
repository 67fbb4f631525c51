// A listening socket of ours, to which ckpt-restart itself connects: both ends of a connection of the job.
//
// Clients that are not of the job come as soon as somebody listens at their server's port again. While we
// connect, what they have connected is accepted and closed: they find the program itself when they try again.
// Else they could fill the queue, and the kernel would drop what our connection sends, for minutes.
//
// Owner:   restart. Callers: ChannelBuilder::establish, one thread.
// Errors:  -1 and errno, as connect(2); ETIMEDOUT: nothing has come for 10 s.
#pragma once

#include "base/raii_fd.h"
#include "restart/channels/channel_builder.h"

namespace ckpt {

class OwnListener {
 public:
  // fd: listens, with O_NONBLOCK; it stays the caller's.
  explicit OwnListener(int fd) : fd_(fd) {}
  // As connect(2) for a client that blocks. 0: the other end is here as well.
  int connect(int client, const SocketName& to);
  // Of the last client that was connected.
  ScopedFd take_other_end() { return std::move(other_end_); }

 private:
  // False, and errno: no more can be accepted.
  bool accept_one(int client);

  int fd_;
  ScopedFd other_end_;
};

}  // namespace ckpt
