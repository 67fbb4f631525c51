#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "restart/channels/channel_builder.h"
#include "restart/channels/hosts_plan.h"
#include "restart/channels/queue_exchange.h"

// Connections between hosts of the job. One end listens, the other connects and says which connection it is.
// Then each end gives the other what waits in its own queue, and the other sends it back: so it waits there
// again.

namespace ckpt {
namespace {

constexpr int64_t kPatienceNs = 30'000'000'000;

struct FarHello {
  char token[64];
  char ends[160];  // "LOCAL REMOTE" of whoever connects, as it was
};

bool exactly(int fd, void* bytes, size_t n, bool writes) {
  char* at = static_cast<char*>(bytes);
  while (n != 0) {
    const ssize_t done = writes ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    n -= static_cast<size_t>(done);
  }
  return true;
}

}  // namespace

// Of the two ends the one with the lower port listens: the port of a server, which others hold with
// SO_REUSEADDR. A port that the kernel had chosen for the connecting end may be held for a minute by the
// connection of the killed program; then that end gets another.
bool ChannelBuilder::listens(const ChannelSocket& s) {
  const auto port = [](const std::string& ends) { return atoi(ends.c_str() + ends.find('.') + 1); };
  const int here = port(s.far_ends), there = port(s.far_ends_there);
  return here != there ? here < there : s.far_ends < s.far_ends_there;
}

bool ChannelBuilder::is_far(const ChannelSocket& s) const { return !s.far_ends.empty(); }

// Notes which connections lead to other hosts, and gives all their new addresses.
void ChannelBuilder::translate(ChannelSocket& s) const {
  const HostsPlan* plan = hosts_plan();
  if (plan == nullptr || s.detail.domain == AF_UNIX) return;
  std::string at_peer;
  if (s.is_tcp() && s.name.length != 0 && s.peer_name.length != 0) {
    const std::string local = end_text(s.name), remote = end_text(s.peer_name);
    if (const auto found = plan->connections.find({local, remote}); found != plan->connections.end()) {
      s.far_ends = local + " " + remote;
      s.far_ends_there = remote + " " + local;
      at_peer = found->second;
    }
  }
  plan->translate_own(s.name);
  plan->translate_other(s.peer_name, at_peer);
}

void ChannelBuilder::translate_senders(ChannelSocket& s) {
  const HostsPlan* plan = hosts_plan();
  if (plan == nullptr || s.detail.domain == AF_UNIX || s.detail.type != SOCK_DGRAM) return;
  for (ChannelMessage& m : s.messages) plan->translate_other(m.sender, {});
}

Result<void> ChannelBuilder::connect_far() {
  const HostsPlan* plan = hosts_plan();
  if (plan == nullptr) return {};
  std::vector<ChannelSocket*> awaited;
  for (auto& s : sockets_) {
    if (!is_far(*s) || !listens(*s)) continue;
    awaited.push_back(s.get());
    const std::string at = end_text(s->name);
    if (listeners_.count(at) != 0) continue;
    ScopedFd fd(socket(s->detail.domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
    set_int(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (s->detail.reuse_port != 0) set_int(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
    if (!fd.valid() || !bind_port(*s, fd.get(), s->name) || listen(fd.get(), 1024) != 0) {
      return make_error(
          ExitCode::kUnavailable, errno,
          "{}: {} cannot be taken on this host ({}): end the program that has it, or try again in a minute",
          describe(*s), s->name.text(), errno_name(errno));
    }
    listeners_.emplace(at, std::move(fd));
  }
  CKPT_TRY(plan->say_listening_and_wait());
  std::vector<std::pair<ChannelSocket*, ScopedFd>> made;
  for (auto& s : sockets_) {
    if (!is_far(*s) || listens(*s)) continue;
    auto fd = connect_from(*s, s->detail.domain, s->name, s->peer_name, true);
    if (!fd.ok()) {
      fd = connect_from(*s, s->detail.domain, SocketName{}, s->peer_name, false);
      if (!fd.ok()) return fd.error();
      say("{}: {} cannot be had on this host: the connection has another one", describe(*s), s->name.text());
    }
    // The program's own listening socket may have this port as well; what it wants is set later.
    set_int(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1);
    FarHello hello{};
    plan->token.copy(hello.token, sizeof(hello.token));
    s->far_ends.copy(hello.ends, sizeof(hello.ends) - 1);
    if (!exactly(fd->get(), &hello, sizeof(hello), true)) return cannot_make(*s);
    made.emplace_back(s.get(), std::move(*fd));
  }
  const int64_t until = now_ns() + kPatienceNs;
  while (!awaited.empty()) {
    std::vector<pollfd> polls;
    for (const auto& [at, fd] : listeners_) polls.push_back({fd.get(), POLLIN, 0});
    const int64_t left = until - now_ns();
    if (left <= 0 || poll(polls.data(), polls.size(), static_cast<int>(left / 1'000'000 + 1)) < 0) {
      if (left > 0 && errno == EINTR) continue;
      return make_error(ExitCode::kTimeout, 0, "{}: the other host did not connect within 30 s",
                        describe(*awaited[0]));
    }
    for (const pollfd& p : polls) {
      if (p.revents == 0) continue;
      ScopedFd peer(accept4(p.fd, nullptr, nullptr, SOCK_CLOEXEC));
      const timeval patience{5, 0};
      setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      FarHello hello{};
      if (!peer.valid() || !exactly(peer.get(), &hello, sizeof(hello), false)) continue;
      hello.ends[sizeof(hello.ends) - 1] = '\0';
      if (std::string_view(hello.token, sizeof(hello.token)) != plan->token) continue;  // a stranger
      const auto it = std::find_if(awaited.begin(), awaited.end(),
                                   [&](const ChannelSocket* s) { return s->far_ends_there == hello.ends; });
      if (it == awaited.end()) continue;
      const timeval none{0, 0};
      setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none));
      made.emplace_back(*it, std::move(peer));
      awaited.erase(it);
    }
  }
  listeners_.clear();
  return exchange_queues(made);
}

Result<void> ChannelBuilder::exchange_queues(std::vector<std::pair<ChannelSocket*, ScopedFd>>& made) {
  std::vector<QueueExchange> all;
  for (auto& [s, fd] : made) {
    set_int(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    std::vector<Blob> queue;
    for (const ChannelMessage& m : s->messages) queue.insert(queue.end(), m.parts.begin(), m.parts.end());
    all.emplace_back(fd.get(), queue, describe(*s));
  }
  CKPT_TRY(exchange_all(all, {}));
  for (auto& [s, fd] : made) {
    s->messages.clear();
    s->link.flags &= ~uint32_t{kLinkOutside};
    CKPT_TRY(park(*s, std::move(fd)));
  }
  return {};
}

}  // namespace ckpt
