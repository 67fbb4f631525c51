// Connections that no process of this host has accepted yet: kept here for a checkpoint. docs/hosts.md, "Not
// accepted yet".
//
// Owner:     cluster/on: the first process of the host, which is a member of the job, so what it keeps is in
//            the image.
// Callers:   serve(), its one thread; forget() in a child that it has forked.
// Never:     keeps a connection before its placeholder waits at the same listening socket. Waits longer than
//            100 ms for a program that accepts at the same time.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/raii_fd.h"

namespace ckpt::cluster {

// accept(2) has failed for want of descriptors or memory: the connection stays, and the socket ready.
bool has_no_room(int error);

class Unaccepted {
 public:
  // hosts: the value of CKPT_HOSTS. False: the name is taken.
  bool listen(const std::string& hosts);
  void add_polls(std::vector<pollfd>& polls) const;
  // What poll said about those; `polls` may have more.
  void serve(const std::vector<pollfd>& polls);
  // serve() had no descriptor for a connection: the next add_polls() leaves that out, and is to be tried
  // again soon.
  bool is_full() const { return is_full_; }
  // In a child: the connections are its parent's.
  void forget();

 private:
  struct Held {
    ScopedFd placeholder;  // our end of it; the other waits to be accepted
    ScopedFd connection;   // invalid: the program has accepted it before us
    sockaddr_storage peer = {};
    socklen_t peer_length = 0;
    int given_to = -1;  // the connection of who has claimed it
  };
  void answer(int asker);
  void take_all();
  void take_from(int listener, const sockaddr_in& at);
  void give(int asker, uint16_t port);
  // A connection that somebody else has accepted in this socket of the program: from here on it waits there
  // again.
  void hold(const ScopedFd& listener, ScopedFd connection);
  Held* find(uint16_t port);

  ScopedFd listener_;
  bool is_full_ = false;
  std::vector<ScopedFd> askers_;
  std::vector<Held> held_;
};

}  // namespace ckpt::cluster
