// A Unix socket by which another process of this machine is asked: how long that may be silent, and whose it
// is.
//
// Owner:     base. Header only. Callers: any thread; raw system calls, so in the program too.
#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstdint>

#include "base/sys.h"

namespace ckpt {

// 0 or -errno; -EAGAIN: its queue was full for all of `patience`, which holds for what follows on the socket
// as well.
inline long connect_with_patience(int socket, const sockaddr_un& address, socklen_t length,
                                  const timeval& patience) {
  for (const int side : {SO_RCVTIMEO, SO_SNDTIMEO})
    sys::call(__NR_setsockopt, socket, SOL_SOCKET, side, &patience, sizeof(patience));
  long r;
  while ((r = sys::call(__NR_connect, socket, &address, length)) == -EINTR) {
  }
  return r;
}

// Another user may have taken the name. 0 or -errno.
inline long user_of_peer(int socket, uint32_t& user) {
  struct {
    int32_t pid;
    uint32_t uid, gid;
  } peer{};
  socklen_t size = sizeof(peer);
  const long r = sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  user = peer.uid;
  return r;
}

}  // namespace ckpt
