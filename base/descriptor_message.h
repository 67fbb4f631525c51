// A message with a descriptor beside it, over a Unix socket (SCM_RIGHTS).
//
// Owner:     base. Header only. Callers: any thread; raw system calls, so in the program too.
// Never:     closes a descriptor; allocates.
#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

#include "base/sys.h"

namespace ckpt {

// descriptor -1: none goes with it. Bytes that were sent, or -errno; an interrupted call is made again.
inline long send_descriptor(int socket, const void* bytes, size_t length, int descriptor, int flags = 0) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{const_cast<void*>(bytes), length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof(descriptor));
  }
  long n;
  while ((n = sys::call(__NR_sendmsg, socket, &message, MSG_NOSIGNAL | flags)) == -EINTR) {
  }
  return n;
}

// Bytes that came, or -errno. *descriptor: the one beside them, close-on-exec, for the caller to close; -1: none.
inline long receive_descriptor(int socket, void* to, size_t length, int* descriptor, int flags = 0) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{to, length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  *descriptor = -1;
  long n;
  while ((n = sys::call(__NR_recvmsg, socket, &message, MSG_CMSG_CLOEXEC | flags)) == -EINTR) {
  }
  const cmsghdr* head = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(sizeof(int)))
    std::memcpy(descriptor, CMSG_DATA(head), sizeof(*descriptor));
  return n;
}

}  // namespace ckpt
