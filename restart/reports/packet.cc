#include "restart/reports/packet.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ckpt {

int send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostPacketFds)] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  }
  ssize_t n;
  do {
    n = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n < 0 ? -errno : 0;
}

Received receive_packet(int socket, std::span<std::byte> bytes, std::span<int> fds, bool dont_wait) {
  iovec vector{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostPacketFds)] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  std::fill(fds.begin(), fds.end(), -1);
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (dont_wait ? MSG_DONTWAIT : 0));
  } while (n < 0 && errno == EINTR);
  if (n == 0) return Received::kEnd;
  if (n < 0) return Received::kNothing;
  size_t came = 0;
  int got[kMostPacketFds];
  if (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr && head->cmsg_type == SCM_RIGHTS) {
    came = std::min((head->cmsg_len - CMSG_LEN(0)) / sizeof(int), kMostPacketFds);
    std::memcpy(got, CMSG_DATA(head), came * sizeof(int));
  }
  const bool whole = n == static_cast<ssize_t>(bytes.size());
  for (size_t i = 0; i < came; ++i) {
    if (whole && i < fds.size())
      fds[i] = got[i];
    else
      close(got[i]);
  }
  return whole ? Received::kMessage : Received::kNothing;
}

}  // namespace ckpt
