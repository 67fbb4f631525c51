// The listening sockets of this host's processes in which connections wait to be accepted.
//
// Owner:     cluster/on. Callers: Unaccepted, in the host's first process: the processes of the job are those
//            below it.
// Never:     changes anything.
#pragma once

#include <netinet/in.h>

#include <vector>

#include "base/raii_fd.h"

namespace ckpt::cluster {

struct WaitingListener {
  ScopedFd fd;
  sockaddr_in at = {};  // where a connection from this host reaches it
};
// Only those that connections from this host reach for certain (no SO_REUSEPORT, IPv4). Left out are those
// that a process has which may accept without libc (Go, io_uring), or which may not be looked into.
std::vector<WaitingListener> find_waiting();
// The same, also where nothing waits.
std::vector<WaitingListener> find_listening();

// A process of the job.
bool is_below_us(int pid);

}  // namespace ckpt::cluster
