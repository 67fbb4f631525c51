#include "restart/channels/queue_exchange.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "restart/channels/channel_builder.h"

namespace ckpt {
namespace {

constexpr int64_t kExchangePatienceNs = 30'000'000'000;

}  // namespace

QueueExchange::QueueExchange(int fd, const std::vector<Blob>& queue, std::string name)
    : fd_(fd), name_(std::move(name)), last_ns_(now_ns()) {
  for (const Blob& part : queue) own_ += part.size();
  out_.assign(reinterpret_cast<const char*>(&own_), sizeof(own_));
  for (const Blob& part : queue) out_.append(reinterpret_cast<const char*>(part.data()), part.size());
  make_room();
}

uint64_t QueueExchange::wanted() const {
  uint64_t length = 0;
  if (in_.size() < sizeof(length)) return sizeof(length);
  std::memcpy(&length, in_.data(), sizeof(length));
  return sizeof(length) + length;
}

// Beyond the largest mark there is only to look again and again.
short QueueExchange::events() const {
  const bool told = reads() || returned_ < std::min(own_, mark_);
  return static_cast<short>((told ? POLLIN : 0) | (sends() ? POLLOUT : 0));
}

std::string QueueExchange::how_far() const {
  return fmt::format("{} bytes have come of {}, {} are to be sent", returned_, own_, out_.size() - sent_);
}

// The room that our queue needs when it comes back. The largest that anybody may have comes with SO_RCVLOWAT;
// more has only a program that had a right to it.
void QueueExchange::make_room() const {
  make_stream_room(fd_);
  const auto all = static_cast<int>(std::min<uint64_t>(own_, 512 << 20));
  int room = 0;
  socklen_t length = sizeof(room);
  if (getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &room, &length) == 0 && room / 2 < all)
    set_int(fd_, SOL_SOCKET, SO_RCVBUFFORCE, all + all / 4);  // the kernel doubles what it is given
  set_int(fd_, SOL_SOCKET, SO_RCVLOWAT, 1);
}

// All of the other's queue is here: it goes back behind ours. poll(2) tells from now on when all of our queue
// is there, or as much as the kernel has a mark for.
void QueueExchange::answer() {
  out_ += in_.substr(sizeof(uint64_t));
  in_.resize(sizeof(uint64_t));
  std::memset(in_.data(), 0, in_.size());
  answered_ = true;
  if (own_ > 1) set_int(fd_, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(std::min<uint64_t>(own_, 1 << 30)));
  int least = 1;
  socklen_t length = sizeof(least);
  if (getsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &least, &length) == 0) mark_ = static_cast<uint64_t>(least);
}

bool QueueExchange::go_on() {
  while (sends()) {
    const ssize_t n = send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent_ += static_cast<size_t>(n);
    last_ns_ = now_ns();
  }
  while (reads()) {
    char bytes[64 << 10];
    const ssize_t n =
        recv(fd_, bytes, std::min<uint64_t>(sizeof(bytes), wanted() - in_.size()), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    in_.append(bytes, static_cast<size_t>(n));
    last_ns_ = now_ns();
  }
  if (reads()) return true;
  if (!answered_) {
    answer();
    return go_on();
  }
  // Looking at a byte lets the kernel tell the sender of the room.
  char byte;
  if (returned_ < own_ && recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return false;
  int bytes = 0;
  if (ioctl(fd_, SIOCINQ, &bytes) == 0 && static_cast<uint64_t>(bytes) != returned_) {
    returned_ = static_cast<uint64_t>(bytes);
    last_ns_ = now_ns();
  }
  return true;
}

Result<void> exchange_all(std::span<QueueExchange> all, const std::function<bool()>& gives_up) {
  for (;;) {
    std::vector<pollfd> polls;
    int64_t last = 0;
    const QueueExchange* late = nullptr;
    for (QueueExchange& e : all) {
      if (!e.go_on()) {
        const int error = errno;
        return make_error(ExitCode::kSystem, error, "{}: what waited in it cannot be given back ({})",
                          e.name(), errno_name(error));
      }
      last = std::max(last, e.last_ns());
      if (!e.done()) late = &e;
      const short events = e.events();
      polls.push_back({events == 0 ? -1 : e.fd(), events, 0});
    }
    if (late == nullptr) return {};
    if (now_ns() - last > kExchangePatienceNs)
      return make_error(
          ExitCode::kTimeout, 0,
          "{}: what was on its way between hosts cannot be given back: {}, and for 30 s no byte went or came",
          late->name(), late->how_far());
    if (gives_up && gives_up()) return make_error(ExitCode::kUnavailable, 0, "the others have given up");
    poll(polls.data(), polls.size(), 20);
  }
}

}  // namespace ckpt
