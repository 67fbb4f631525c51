// A message with descriptors beside it, over a Unix socket (SCM_RIGHTS).
//
// Owner:     base. Header only. Callers: any thread; raw system calls, so in the program too.
// Never:     closes a descriptor that was handed in; allocates.
#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <span>

#include "base/sys.h"

namespace ckpt {

inline constexpr size_t kMostDescriptors = 2;  // beside one message

// At most kMostDescriptors, none of them -1. Bytes that were sent, or -errno; an interrupted call is made
// again.
inline long send_descriptors(int socket, const void* bytes, size_t length, std::span<const int> descriptors,
                             int flags = 0) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  iovec part{const_cast<void*>(bytes), length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors.size() > kMostDescriptors) return -EINVAL;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  long n;
  while ((n = sys::call(__NR_sendmsg, socket, &message, MSG_NOSIGNAL | flags)) == -EINTR) {
  }
  return n;
}

// descriptor -1: none goes with it.
inline long send_descriptor(int socket, const void* bytes, size_t length, int descriptor, int flags = 0) {
  return send_descriptors(socket, bytes, length, {&descriptor, descriptor >= 0 ? size_t{1} : size_t{0}},
                          flags);
}

// Bytes that came, or -errno. descriptors, at most kMostDescriptors: those beside them, close-on-exec, for
// the caller to close; -1: none. The kernel closes those for which there is no place.
inline long receive_descriptors(int socket, void* to, size_t length, std::span<int> descriptors,
                                int flags = 0) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  iovec part{to, length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(descriptors.size_bytes());
  for (int& descriptor : descriptors) descriptor = -1;
  if (descriptors.size() > kMostDescriptors) return -EINVAL;
  long n;
  while ((n = sys::call(__NR_recvmsg, socket, &message, MSG_CMSG_CLOEXEC | flags)) == -EINTR) {
  }
  const cmsghdr* head = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
    const size_t bytes = head->cmsg_len - CMSG_LEN(0);
    std::memcpy(descriptors.data(), CMSG_DATA(head),
                bytes < descriptors.size_bytes() ? bytes : descriptors.size_bytes());
  }
  return n;
}

inline long receive_descriptor(int socket, void* to, size_t length, int* descriptor, int flags = 0) {
  return receive_descriptors(socket, to, length, {descriptor, 1}, flags);
}

}  // namespace ckpt
