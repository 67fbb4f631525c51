// Sockets: the kernel restarts no call that has SO_RCVTIMEO or SO_SNDTIMEO, and signals can cut sends short.
// And addresses of the job are not always those of the machine (addresses/addresses.h).
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, connect, int fd, const sockaddr* address, socklen_t length) {
  CancellationPoint here;
  return to_errno<int>(calls::connect(fd, address, length));
}
CKPT_INTERPOSE_ALIAS(connect, __connect);

CKPT_INTERPOSE(int, getsockname, int fd, sockaddr* address, socklen_t* length) {
  return to_errno<int>(calls::socket_name(__NR_getsockname, fd, address, length));
}

CKPT_INTERPOSE(int, getpeername, int fd, sockaddr* address, socklen_t* length) {
  return to_errno<int>(calls::socket_name(__NR_getpeername, fd, address, length));
}

CKPT_INTERPOSE(int, accept4, int fd, sockaddr* address, socklen_t* length, int flags) {
  CancellationPoint here;
  return to_errno<int>(calls::accept4(fd, address, length, flags));
}

CKPT_INTERPOSE(int, accept, int fd, sockaddr* address, socklen_t* length) {
  return ckpt_libc_accept4(fd, address, length, 0);
}

CKPT_INTERPOSE(ssize_t, sendto, int fd, const void* buffer, size_t n, int flags, const sockaddr* address,
               socklen_t length) {
  CancellationPoint here;
  return to_errno(calls::sendto(fd, buffer, n, flags, address, length));
}

CKPT_INTERPOSE(ssize_t, send, int fd, const void* buffer, size_t n, int flags) {
  return ckpt_libc_sendto(fd, buffer, n, flags, nullptr, 0);
}
CKPT_INTERPOSE_ALIAS(send, __send);

CKPT_INTERPOSE(ssize_t, recvfrom, int fd, void* buffer, size_t n, int flags, sockaddr* address,
               socklen_t* length) {
  CancellationPoint here;
  return to_errno(calls::recvfrom(fd, buffer, n, flags, address, length));
}

CKPT_INTERPOSE(ssize_t, recv, int fd, void* buffer, size_t n, int flags) {
  return ckpt_libc_recvfrom(fd, buffer, n, flags, nullptr, nullptr);
}

CKPT_INTERPOSE(ssize_t, __recv_chk, int fd, void* buffer, size_t n, size_t buffer_bytes, int flags) {
  if (n > buffer_bytes) __chk_fail();
  return ckpt_libc_recv(fd, buffer, n, flags);
}

CKPT_INTERPOSE(ssize_t, __recvfrom_chk, int fd, void* buffer, size_t n, size_t buffer_bytes, int flags,
               sockaddr* address, socklen_t* length) {
  if (n > buffer_bytes) __chk_fail();
  return ckpt_libc_recvfrom(fd, buffer, n, flags, address, length);
}

CKPT_INTERPOSE(ssize_t, sendmsg, int fd, const msghdr* message, int flags) {
  CancellationPoint here;
  return to_errno(calls::sendmsg(fd, message, flags));
}

CKPT_INTERPOSE(ssize_t, recvmsg, int fd, msghdr* message, int flags) {
  CancellationPoint here;
  return to_errno(calls::recvmsg(fd, message, flags));
}

CKPT_INTERPOSE(int, sendmmsg, int fd, mmsghdr* messages, unsigned n, int flags) {
  CancellationPoint here;
  return to_errno<int>(calls::sendmmsg(fd, messages, n, flags));
}

CKPT_INTERPOSE(int, recvmmsg, int fd, mmsghdr* messages, unsigned n, int flags, timespec* timeout) {
  CancellationPoint here;
  return to_errno<int>(calls::recvmmsg(fd, messages, n, flags, timeout));
}
