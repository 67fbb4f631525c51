// A TCP connection that lets through at once what both of its ends hold back, and is then put back as it was.
//
// Owner:     base. Header only. Callers: the agent and threads of ours, of connections of the program, whose
//            threads stand; `ckpt back`, of descriptors that it has borrowed.
// Never:     allocates, touches errno.
// Source:    socket(7), tcp(7). SO_RCVLOWAT makes room for what it asks for, beyond rmem_max and without a
//            right, where the size of the room is not locked (SO_BUF_LOCK). The kernel then sets
//            TCP_WINDOW_CLAMP too.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/sys.h"

namespace ckpt {

inline constexpr int kSoBufLock = 72;  // SO_BUF_LOCK, Linux 5.14

namespace socket_options {

// netinet/tcp.h and linux/tcp.h, of which a file may have but one.
inline constexpr int kTcpNoDelay = 1, kTcpCork = 3, kTcpWindowClamp = 10;

// 0: there is none.
inline int get(int fd, int level, int name) {
  int value = 0, length = sizeof(value);
  return sys::failed(sys::call(__NR_getsockopt, fd, level, name, &value, &length)) ? 0 : value;
}
inline void set(int fd, int level, int name, int value) {
  sys::call(__NR_setsockopt, fd, level, name, &value, sizeof(value));
}

}  // namespace socket_options

// The room for what is received. Several processes may have the same connection, and make room in it at the
// same time: an option that a process finds changed already is another's to put back.
class ReceiveRoom {
 public:
  ReceiveRoom() = default;
  // Takes the lock off the size.
  explicit ReceiveRoom(int fd)
      : fd_(fd),
        bytes_(get(SOL_SOCKET, SO_RCVBUF)),
        lock_(get(SOL_SOCKET, kSoBufLock)),
        low_(get(SOL_SOCKET, SO_RCVLOWAT)),
        clamp_(get(IPPROTO_TCP, socket_options::kTcpWindowClamp)) {
    if (lock_ != 0) set(SOL_SOCKET, kSoBufLock, 0);
  }
  static constexpr int kMuch = 1 << 30;
  // For so many bytes that are in it or come. The kernel takes no room back that the sender was told of: what
  // is too much the sender may fill later.
  void enlarge(int bytes = kMuch) {
    set(SOL_SOCKET, SO_RCVLOWAT, bytes);
    lower_ = low_ != get(SOL_SOCKET, SO_RCVLOWAT);  // the kernel has a largest
  }
  // A room of which nobody has chosen the size stays: the kernel adapts it.
  void put_back() const {
    if (lower_) set(SOL_SOCKET, SO_RCVLOWAT, low_);
    if (lock_ == 0) return;
    set(SOL_SOCKET, SO_RCVBUF, bytes_ / 2);  // the kernel doubles what it is given
    if (get(SOL_SOCKET, SO_RCVBUF) != bytes_) set(SOL_SOCKET, SO_RCVBUFFORCE, bytes_ / 2);
    set(SOL_SOCKET, kSoBufLock, lock_);
    set(IPPROTO_TCP, socket_options::kTcpWindowClamp, clamp_);
  }
  bool was_locked() const { return lock_ != 0; }

 private:
  int get(int level, int name) const { return socket_options::get(fd_, level, name); }
  void set(int level, int name, int value) const { socket_options::set(fd_, level, name, value); }

  int fd_ = -1, bytes_ = 0, lock_ = 0, low_ = 0, clamp_ = 0;
  bool lower_ = true;  // SO_RCVLOWAT is ours to put back
};

// What has an end wait before it sends: for more bytes (TCP_CORK), for an answer (without TCP_NODELAY).
struct HeldBack {
  int cork = 0, no_delay = 1;

  bool any() const { return cork != 0 || no_delay == 0; }
};

inline HeldBack send_at_once(int fd) {
  using namespace socket_options;
  const HeldBack was{get(fd, IPPROTO_TCP, kTcpCork), get(fd, IPPROTO_TCP, kTcpNoDelay)};
  if (was.cork != 0) set(fd, IPPROTO_TCP, kTcpCork, 0);
  // Also where it is on: what was sent with MSG_MORE waits for more (200 ms) all the same, and goes now.
  set(fd, IPPROTO_TCP, kTcpNoDelay, 1);
  return was;
}

inline void hold_back_again(int fd, const HeldBack& was) {
  using namespace socket_options;
  if (was.no_delay == 0) set(fd, IPPROTO_TCP, kTcpNoDelay, 0);
  if (was.cork != 0) set(fd, IPPROTO_TCP, kTcpCork, 1);
}

}  // namespace ckpt
