// The stream sockets of TCP and of Unix in which this process listens, and the connections in them that
// nobody has accepted and in which bytes wait: nobody can read those (sock_diag(7) tells that they are
// there).
//
// Owner:     libckpt_rt, sockets. Callers: the agent, while the program runs.
// Never:     changes a socket; what it says may be past.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "libckpt_rt/capture/descriptors/table/descriptor.h"

namespace ckpt {

class SocketDiag;
struct UnixSocketFacts;

class ListeningSockets {
 public:
  // reserve: makes room in an arena. False: there is no memory.
  using Reserve = bool (*)(Arena& arena, size_t bytes);
  bool open(Reserve reserve);
  // Of the sockets among these descriptors. False: the kernel says nothing of either family, or there is no
  // memory.
  bool look(std::span<const CapturedDescriptor> descriptors);
  bool any() const { return any_; }
  // What the last look has seen: connections whose clients have sent bytes, or are gone.
  void remember_unread();
  // One of those is still there.
  bool any_remembered() const;

 private:
  bool look_at_tcp(SocketDiag& diag);
  bool look_at_unix(SocketDiag& diag);
  bool is_own(uint32_t inode) const;

  Arena of_look_, of_memory_;
  ArenaVector<uint32_t> own_;  // inodes, sorted
  ArenaVector<uint64_t> unread_,
      remembered_;  // of Unix sockets the client's inode, of TCP its port and the server's
  bool any_ = false;
};

}  // namespace ckpt
