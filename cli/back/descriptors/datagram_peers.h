// Datagram sockets (UDP) of processes that stay, which are connected to a host that was lost or left: they
// stay as they are, and are connected to the host that has its processes now. A connected datagram socket has
// nothing of the other end but its address.
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc and connect_part.cc, while the processes stand.
// Never: changes a socket before connect(), which comes behind the decision: nothing has to be taken back.
#pragma once

#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "cli/back/descriptors/image_socket.h"
#include "cli/back/descriptors/new_connections.h"

namespace ckpt::cli {

// May this socket of `member`, connected to that host, be connected anew in this way? Left out: a socket that
// only waits in another one, and a socket that may hold a part of a datagram (UDP_CORK), which goes where it
// was begun for.
bool is_datagram_peer(const StandingMember& member, const ParsedOpenFile& file, const ImageSocket& socket);

class DatagramPeers {
 public:
  // Takes over a descriptor of each, by the image, of those that are still there; others are made anew with
  // all that was closed.
  Result<void> take(const std::vector<StandingMember>& members);
  Result<void> connect() const;

 private:
  struct Peer {
    std::string name;
    ScopedFd socket;
    SocketName to;
  };
  std::vector<Peer> peers_;
};

}  // namespace ckpt::cli
