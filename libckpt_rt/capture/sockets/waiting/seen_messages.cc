#include "libckpt_rt/capture/sockets/waiting/seen_messages.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/memory/large_table.h"
#include "libckpt_rt/capture/sockets/noted/by_cookie.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint32_t kSockets = 16, kMessages = 64;
constexpr int kTimestamp = 29, kTimestampNs = 35, kTimestampNew = 63, kTimestampNsNew = 64;  // SO_*

}  // namespace

struct SeenMessages::Place {
  uint64_t cookie = 0;  // 0: free
  uint32_t count = 0;
  SeenMessage messages[kMessages]{};
};

SeenMessages::Place* SeenMessages::places() {
  // The last is of a look at a socket for which there is no other.
  CKPT_LARGE_TABLE static constinit Place all[kSockets + 1]{};
  return all;
}

SeenMessages::Place* SeenMessages::place_of(uint64_t cookie) {
  for (const uint64_t wanted : {cookie, uint64_t{0}}) {
    for (Place* place = places(); place != places() + kSockets; ++place) {
      if (place->cookie == wanted) return place;
    }
  }
  return places() + kSockets;
}

// Others lose their place to no socket but one that needs it.
void SeenMessages::keep_last() {
  static constinit uint32_t oldest = 0;
  Place& last = places()[kSockets];
  if (place_ != &last || last.cookie == 0) return;
  places()[oldest++ % kSockets] = last;
  last.cookie = last.count = 0;
}

int64_t stamp_of(const msghdr& header) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(&header), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != kTimestampNs ||
        c->cmsg_len < CMSG_LEN(sizeof(timespec)))
      continue;
    timespec at;
    std::memcpy(&at, CMSG_DATA(c), sizeof(at));
    return int64_t{at.tv_sec} * 1'000'000'000 + at.tv_nsec;
  }
  return 0;
}

SeenMessages::SeenMessages(int socket) : socket_(socket) {
  for (const int other : {kTimestamp, kTimestampNew, kTimestampNsNew}) {
    if (socket_option(socket, SOL_SOCKET, other) != 0) return;
  }
  was_on_ = socket_option(socket, SOL_SOCKET, kTimestampNs) != 0;
  on_ = was_on_ || set_socket_option(socket, SOL_SOCKET, kTimestampNs, 1);
  if (!on_) return;
  look_at_first();
  const uint64_t cookie = cookie_of_socket(socket);
  if (first_stamp_ == 0 || cookie == 0) return;
  place_ = place_of(cookie);
  if (place_->cookie != cookie) place_->count = 0;
  place_->cookie = cookie;
  drop_received();
}

// Where nothing without a byte waits, nothing is to be remembered.
SeenMessages::~SeenMessages() {
  if (on_ && !was_on_) set_socket_option(socket_, SOL_SOCKET, kTimestampNs, 0);
  if (place_ == nullptr) return;
  const bool any = std::any_of(place_->messages, place_->messages + place_->count,
                               [](const SeenMessage& m) { return m.detail.length == 0; });
  if (lost_ || !any) place_->cookie = place_->count = 0;
  keep_last();
}

void SeenMessages::look_at_first() {
  // Room for a time stamp alone: no descriptor is given to us.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
  iovec none{};
  msghdr header{nullptr, 0, &none, 1, control, sizeof(control), 0};
  const long r =
      sys::call(__NR_recvmsg, socket_, &header, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  if (r < 0) return;
  first_stamp_ = stamp_of(header);
  first_length_ = static_cast<uint64_t>(r);
}

void SeenMessages::drop_received() {
  SeenMessage* const all = place_->messages;
  SeenMessage* const end = all + place_->count;
  auto is_first = [this](const SeenMessage& m) {
    return m.stamp == first_stamp_ && m.detail.length == first_length_;
  };
  SeenMessage* const next = std::find_if(all, end, is_first);
  // A stamp that two have tells nothing: the clock was set back.
  const bool found = next != end && std::find_if(next + 1, end, is_first) == end;
  place_->count = found ? static_cast<uint32_t>(end - next) : 0;
  if (found) std::memmove(all, next, place_->count * sizeof(SeenMessage));
  known_ = place_->count;
}

const SeenMessage* SeenMessages::before(int64_t stamp) {
  if (place_ == nullptr || at_ >= known_) return nullptr;
  const SeenMessage& next = place_->messages[at_];
  // One with bytes is always shown: it is either the one that is asked about, or nothing is as it was.
  if (next.stamp == stamp || next.detail.length != 0) return nullptr;
  ++at_;
  return &next;
}

void SeenMessages::add(int64_t stamp, const SocketMessageDetail& detail, const void* address) {
  if (place_ == nullptr) return;
  if (at_ < known_ && place_->messages[at_].stamp == stamp) {
    ++at_;
    return;
  }
  lost_ = lost_ || stamp == 0 || at_ < known_ || place_->count == kMessages ||
          detail.address_len > sizeof(SeenMessage::address);
  if (lost_) return;
  SeenMessage& m = place_->messages[place_->count++];
  m.stamp = stamp;
  m.detail = detail;
  std::memcpy(m.address, address, detail.address_len);
}

}  // namespace ckpt
