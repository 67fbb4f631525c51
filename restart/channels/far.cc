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
struct FarHello {
  char token[64];
  char ends[160];  // "LOCAL REMOTE" of whoever connects, as it was
};

namespace {

constexpr int64_t kPatienceNs = 30'000'000'000, kHelloNs = 5'000'000'000;
constexpr int kLookMs = 100;

bool send_all(int fd, const void* bytes, size_t n) {
  const char* at = static_cast<const char*>(bytes);
  while (n != 0) {
    const ssize_t done = send(fd, at, n, MSG_NOSIGNAL);
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
// connection of the killed program; then that end gets another. A server whose port the kernel had chosen has
// clients with lower ports and clients with higher ones: so we listen at that port, and connect from it
// (share_port()).
bool ChannelBuilder::listens(const ChannelSocket& s) {
  const auto port = [](const std::string& ends) { return atoi(ends.c_str() + ends.find('.') + 1); };
  const int here = port(s.far_ends), there = port(s.far_ends_there);
  return here != there ? here < there : s.far_ends < s.far_ends_there;
}

bool ChannelBuilder::connects_from(uint16_t port) const {
  return std::any_of(sockets_.begin(), sockets_.end(),
                     [&](const auto& s) { return is_far(*s) && !listens(*s) && s->name.port() == port; });
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
    if (!listens_at_.insert(at).second) continue;
    ScopedFd fd(socket(s->detail.domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
    set_before_connecting(fd.get(), *s);
    set_int(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    const bool shared = connects_from(s->name.port());
    if (shared) share_port(s->name.port());
    if (s->detail.reuse_port != 0 || shared) set_int(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
    if (!fd.valid() || !bind_port(*s, fd.get(), s->name) || listen(fd.get(), 1024) != 0) {
      return make_error(
          ExitCode::kUnavailable, errno,
          "{}: {} cannot be taken on this host ({}): end the program that has it, or try again in a minute",
          describe(*s), s->name.text(), errno_name(errno));
    }
    listeners_.push_back(std::move(fd));
  }
  CKPT_TRY(plan->say_listening_and_wait());
  Made made;
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
    if (!send_all(fd->get(), &hello, sizeof(hello))) return cannot_make(*s);
    made.emplace_back(s.get(), std::move(*fd));
  }
  CKPT_TRY(accept_far(std::move(awaited), made));
  return exchange_queues(made);
}

// A peer that has connected and has not sent its hello yet. Its bytes stay in the socket until it is known:
// the peer may be a client of the program.
struct ChannelBuilder::Caller {
  ScopedFd fd;
  int listener = -1;
  FarHello hello{};
  int64_t until_ns = 0;

  enum class Said { kNotAll, kAll, kNothing };
  Said hear(const std::string& token) {
    const ssize_t n = recv(fd.get(), &hello, sizeof(hello), MSG_DONTWAIT | MSG_PEEK);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return Said::kNothing;
    const size_t got = n > 0 ? static_cast<size_t>(n) : 0;
    const size_t known = std::min({got, sizeof(hello.token), token.size()});
    if (std::string_view(hello.token, known) != std::string_view(token).substr(0, known))
      return Said::kNothing;
    if (got < sizeof(hello)) return now_ns() > until_ns ? Said::kNothing : Said::kNotAll;
    return recv(fd.get(), &hello, sizeof(hello), MSG_DONTWAIT) == sizeof(hello) ? Said::kAll : Said::kNothing;
  }
};

namespace {

bool waits_in(int listener) {
  pollfd one{listener, POLLIN, 0};
  return poll(&one, 1, 0) > 0 && (one.revents & POLLIN) != 0;
}

}  // namespace

void ChannelBuilder::store_stranger(Caller& caller) {
  if (lent_.contains(caller.listener))
    strangers_.push_back({ScopedFd(fcntl(caller.listener, F_DUPFD_CLOEXEC, 0)), std::move(caller.fd)});
  caller.fd.reset();
}

Result<void> ChannelBuilder::accept_far(std::vector<ChannelSocket*> awaited, Made& made) {
  std::vector<Caller> callers;
  auto heard = hear_callers(std::move(awaited), made, callers);
  for (Caller& caller : callers) {
    if (caller.fd.valid()) store_stranger(caller);
  }
  lent_.clear();
  listeners_.clear();
  listens_at_.clear();
  return heard;
}

// Strangers may connect as well, say nothing, or say it slowly: nobody waits for them.
Result<void> ChannelBuilder::hear_callers(std::vector<ChannelSocket*> awaited, Made& made,
                                          std::vector<Caller>& callers) {
  const HostsPlan* plan = hosts_plan();
  for (const int64_t until = now_ns() + kPatienceNs; !awaited.empty();) {
    std::vector<pollfd> polls;
    for (const ScopedFd& fd : listeners_) polls.push_back({fd.get(), POLLIN, 0});
    for (const Caller& caller : callers) polls.push_back({caller.fd.get(), POLLIN, 0});
    if (poll(polls.data(), polls.size(), kLookMs) < 0 && errno != EINTR) return cannot_make(*awaited[0]);
    if (now_ns() > until) {
      return make_error(ExitCode::kTimeout, 0, "{}: the other host did not connect within 30 s",
                        describe(*awaited[0]));
    }
    // Two of them may be the same socket: what was there for one is gone for the other, and accept(2) would
    // wait.
    for (const ScopedFd& fd : listeners_) {
      if (!waits_in(fd.get())) continue;
      Caller caller;
      caller.fd.reset(accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      caller.listener = fd.get();
      caller.until_ns = now_ns() + kHelloNs;
      if (caller.fd.valid()) callers.push_back(std::move(caller));
    }
    for (Caller& caller : callers) {
      if (!caller.fd.valid()) continue;
      const Caller::Said said = caller.hear(plan->token);
      if (said == Caller::Said::kNotAll) continue;
      if (said == Caller::Said::kNothing) {
        store_stranger(caller);
        continue;
      }
      ScopedFd peer = std::move(caller.fd);  // closed, unless it is awaited
      caller.hello.ends[sizeof(caller.hello.ends) - 1] = '\0';
      const auto it = std::find_if(awaited.begin(), awaited.end(), [&](const ChannelSocket* s) {
        return s->far_ends_there == caller.hello.ends;
      });
      if (it == awaited.end()) continue;
      made.emplace_back(*it, std::move(peer));
      awaited.erase(it);
    }
    std::erase_if(callers, [](const Caller& caller) { return !caller.fd.valid(); });
  }
  return {};
}

Result<void> ChannelBuilder::exchange_queues(Made& made) {
  std::vector<QueueExchange> all;
  for (auto& [s, fd] : made) {
    set_int(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd.get(), SOL_SOCKET, SO_REUSEPORT, s->detail.reuse_port);
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
