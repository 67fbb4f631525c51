#include "job/capture/channel.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/sockets/descriptor_message.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

bool send_message(int socket, Step step, const void* payload, size_t bytes, const void* more,
                  size_t more_bytes) {
  MessageHead head{static_cast<uint32_t>(step), static_cast<uint32_t>(bytes + more_bytes)};
  iovec parts[3] = {
      {&head, sizeof(head)}, {const_cast<void*>(payload), bytes}, {const_cast<void*>(more), more_bytes}};
  size_t first = 0;
  while (first < 3) {
    msghdr message{};
    message.msg_iov = parts + first;
    message.msg_iovlen = 3 - first;
    long n = sys::call(__NR_sendmsg, socket, &message, MSG_NOSIGNAL);
    if (n == -EINTR) continue;
    if (n < 0) return false;
    for (; first < 3 && static_cast<size_t>(n) >= parts[first].iov_len; ++first)
      n -= static_cast<long>(parts[first].iov_len);
    if (first == 3) break;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + n;
    parts[first].iov_len -= static_cast<size_t>(n);
  }
  return true;
}

Received wait_for_bytes(int socket, int64_t deadline_ns) {
  for (;;) {
    pollfd wait{socket, POLLIN, 0};
    timespec left{};
    if (deadline_ns != 0) {
      const int64_t ns = deadline_ns - now_ns();
      if (ns <= 0) return Received::kTimeout;
      left = {ns / 1'000'000'000, ns % 1'000'000'000};
    }
    const long n = sys::call(__NR_ppoll, &wait, 1L, deadline_ns == 0 ? nullptr : &left, nullptr, 8L);
    if (n == -EINTR) continue;
    if (n < 0) return Received::kClosed;
    return n == 0 ? Received::kTimeout : Received::kMessage;
  }
}

namespace {

// In all, whatever a peer sends now and then.
Received receive_all(int socket, void* to, size_t bytes, int64_t deadline_ns) {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    if (const Received there = wait_for_bytes(socket, deadline_ns); there != Received::kMessage) return there;
    const long n = sys::call(__NR_recvfrom, socket, at, bytes, MSG_DONTWAIT, 0L, 0L);
    if (n == -EINTR || n == -EAGAIN) continue;
    if (n <= 0) return Received::kClosed;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return Received::kMessage;
}

}  // namespace

bool receive_exactly(int socket, void* to, size_t bytes) {
  constexpr int64_t kPatienceNs = 5'000'000'000;
  return receive_all(socket, to, bytes, now_ns() + kPatienceNs) == Received::kMessage;
}

bool take_post(std::span<const std::byte>& rest, Post& head, std::span<const std::byte>& bytes) {
  if (rest.size() < sizeof(head)) return false;
  std::memcpy(&head, rest.data(), sizeof(head));
  const size_t padded = (size_t{head.length} + 7) & ~size_t{7};
  if (head.length > kMostPostBytes || rest.size() - sizeof(head) < padded) return false;
  head.host[sizeof(head.host) - 1] = '\0';
  bytes = rest.subspan(sizeof(head), padded);
  rest = rest.subspan(sizeof(head) + padded);
  return true;
}

Error no_room_for_mail() {
  return make_error(ExitCode::kUnavailable, 0,
                    "plug-ins have posted more than {} bytes to this process: the checkpoint was given up",
                    kMostMailBytes);
}

bool send_with_descriptor(int socket, const void* bytes, size_t length, int descriptor) {
  return send_descriptor(socket, bytes, length, descriptor) == static_cast<long>(length);
}

bool receive_with_descriptor(int socket, void* to, size_t length, int* descriptor, bool* is_whole) {
  const long n = receive_descriptor(socket, to, length, descriptor, MSG_WAITALL);
  if (is_whole != nullptr) *is_whole = n == static_cast<long>(length);
  return n == static_cast<long>(length) && *descriptor >= 0;
}

Received receive_message(int socket, int64_t deadline_ns, Arena& arena, Message& message) {
  MessageHead head;
  if (const Received got = receive_all(socket, &head, sizeof(head), deadline_ns); got != Received::kMessage)
    return got;
  if (head.bytes > kMostMessageBytes) return Received::kClosed;
  void* payload = nullptr;
  if (head.bytes != 0) {
    payload = arena.allocate(head.bytes);
    if (payload == nullptr) return Received::kClosed;
    if (const Received got = receive_all(socket, payload, head.bytes, deadline_ns); got != Received::kMessage)
      return got;
  }
  message.step = static_cast<Step>(head.step);
  message.payload = {static_cast<const std::byte*>(payload), head.bytes};
  return Received::kMessage;
}

}  // namespace ckpt::job
