#include "cluster/on/unaccepted.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/protocol/unaccepted_protocol.h"
#include "base/sockets/descriptor_message.h"
#include "base/sys.h"
#include "cluster/on/waiting.h"

// All calls on sockets of the program are raw: those of libc speak of the job's addresses, and accept(2) of a
// program in a job would ask this process.

namespace ckpt::cluster {
namespace {

constexpr int kLongestConnect = 200;            // ms, over the loopback
constexpr suseconds_t kLongestAccept = 20'000;  // µs: the connection is there unless the program was faster

// How many wait in it.
uint32_t waiting_in(int listener) {
  tcp_info info{};
  int length = sizeof(info);
  return sys::call(__NR_getsockopt, listener, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_unacked
                                                                                          : 0;
}

sockaddr_in placeholder_address() {
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(kPlaceholderAddress);
  return from;
}

ScopedFd connect_placeholder(const sockaddr_in& to) {
  ScopedFd fd(static_cast<int>(
      sys::call(__NR_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)));
  const sockaddr_in from = placeholder_address();
  if (!fd.valid() || sys::call(__NR_bind, fd.get(), &from, sizeof(from)) != 0) return {};
  const long r = sys::call(__NR_connect, fd.get(), &to, sizeof(to));
  if (r == 0) return fd;
  pollfd done{fd.get(), POLLOUT, 0};
  if (r != -EINPROGRESS || poll(&done, 1, kLongestConnect) != 1 || (done.revents & (POLLERR | POLLHUP)) != 0)
    return {};
  return fd;
}

// The port that a placeholder comes from; 0: it comes from somebody else.
uint16_t placeholder_port(const sockaddr_storage& peer) {
  in_addr address{};
  if (peer.ss_family == AF_INET) {
    address = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
  } else if (peer.ss_family == AF_INET6 &&
             IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr)) {
    std::memcpy(&address, reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr.s6_addr + 12,
                sizeof(address));
  }
  return address.s_addr == htonl(kPlaceholderAddress)
             ? ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port)
             : uint16_t{0};
}

bool is_known(int peer, ucred& who) {
  socklen_t size = sizeof(who);
  return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
}

bool is_our_user(const ucred& who) { return who.uid == geteuid() || who.uid == 0; }

// A process of the job may have become another user's.
bool may_ask(int peer) {
  ucred who{};
  return is_known(peer, who) && (is_our_user(who) || is_below_us(who.pid));
}

bool receive(int asker, UnacceptedQuestion& question, ScopedFd (&sent)[2]) {
  int fds[2];
  const long n = receive_descriptors(asker, &question, sizeof(question), fds, MSG_DONTWAIT);
  for (int i = 0; i < 2; ++i) sent[i].reset(fds[i]);
  return n == sizeof(question);
}

void on_alarm(int) {}

// Ends an accept(2) that waits because the program has accepted the connection first. The alarm repeats,
// since the first may come before accept(2) begins.
class Alarm {
 public:
  Alarm() {
    struct sigaction action {};
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, nullptr);
    set(kLongestAccept);
  }
  ~Alarm() { set(0); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  static void set(suseconds_t period) {
    const itimerval time{{0, period}, {0, period}};
    setitimer(ITIMER_REAL, &time, nullptr);
  }
};

}  // namespace

bool has_no_room(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

bool Unaccepted::listen(const std::string& hosts) {
  listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = unaccepted_address(hosts, address);
  return listener_.valid() &&
         bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
         ::listen(listener_.get(), 64) == 0;
}

void Unaccepted::forget() {
  listener_.reset();
  askers_.clear();
  held_.clear();
}

void Unaccepted::add_polls(std::vector<pollfd>& polls) const {
  polls.push_back({is_full_ ? -1 : listener_.get(), POLLIN, 0});
  for (const ScopedFd& asker : askers_) polls.push_back({asker.get(), POLLIN, 0});
  for (const Held& h : held_) polls.push_back({h.placeholder.get(), POLLRDHUP, 0});
}

void Unaccepted::serve(const std::vector<pollfd>& polls) {
  const auto is_ready = [&](int fd) {
    return std::any_of(polls.begin(), polls.end(),
                       [&](const pollfd& p) { return p.fd == fd && p.revents != 0; });
  };
  std::vector<int> ready;
  for (const ScopedFd& asker : askers_)
    if (is_ready(asker.get())) ready.push_back(asker.get());
  // The other end of the placeholder is closed: with its listening socket, or after the program has claimed
  // the connection and put it in the placeholder's place.
  std::erase_if(held_, [&](const Held& h) { return is_ready(h.placeholder.get()); });
  for (int asker : ready) answer(asker);
  is_full_ = false;
  if (is_ready(listener_.get())) {
    ScopedFd peer(
        static_cast<int>(sys::call(__NR_accept4, listener_.get(), 0L, 0L, static_cast<long>(SOCK_CLOEXEC))));
    is_full_ = !peer.valid() && has_no_room(-peer.get());
    if (peer.valid() && may_ask(peer.get())) askers_.push_back(std::move(peer));
  }
}

void Unaccepted::answer(int asker) {
  UnacceptedQuestion question{};
  ScopedFd sent[2];
  if (receive(asker, question, sent)) {
    ucred who{};
    const bool known = is_known(asker, who);
    if (known && question.what == UnacceptedQuestion::What::kTakeAll && is_our_user(who)) {
      take_all();
      UnacceptedAnswer all{};
      all.how = UnacceptedAnswer::How::kTaken;
      all.count = static_cast<uint32_t>(held_.size());
      (void)!send(asker, &all, sizeof(all), MSG_NOSIGNAL | MSG_DONTWAIT);
      return;
    }
    if (known && question.what == UnacceptedQuestion::What::kHold && sent[1].valid() &&
        (who.uid == geteuid() || who.uid == 0))
      return hold(sent[0], std::move(sent[1]));
    if (known && question.what == UnacceptedQuestion::What::kClaim && is_below_us(who.pid))
      return give(asker, static_cast<uint16_t>(question.port));
  }
  // The asker has what it wanted, is gone, or is a stranger.
  std::erase_if(held_, [&](const Held& h) { return h.given_to == asker; });
  std::erase_if(askers_, [&](const ScopedFd& a) { return a.get() == asker; });
}

Unaccepted::Held* Unaccepted::find(uint16_t port) {
  for (Held& h : held_) {
    sockaddr_storage own{};
    int length = sizeof(own);
    if (sys::call(__NR_getsockname, h.placeholder.get(), &own, &length) == 0 && placeholder_port(own) == port)
      return &h;
  }
  return nullptr;
}

// The connection stays here until the asker has closed its socket: so a checkpoint in between finds it in at
// least one of the two processes.
void Unaccepted::give(int asker, uint16_t port) {
  UnacceptedAnswer answer{};
  answer.how = UnacceptedAnswer::How::kNone;
  Held* held = find(port);
  int connection = -1;
  if (held != nullptr) held->given_to = asker;
  if (held != nullptr && held->connection.valid()) {
    answer.how = UnacceptedAnswer::How::kConnection;
    answer.address = held->peer;
    answer.address_length = held->peer_length;
    connection = held->connection.get();
  }
  (void)send_descriptor(asker, &answer, sizeof(answer), connection, MSG_DONTWAIT);
}

void Unaccepted::hold(const ScopedFd& listener, ScopedFd connection) {
  struct stat wanted {};
  struct stat st {};
  if (fstat(listener.get(), &wanted) != 0) return;
  for (const WaitingListener& one : find_listening()) {
    if (fstat(one.fd.get(), &st) != 0 || st.st_ino != wanted.st_ino) continue;
    Held held;
    held.peer_length = sizeof(held.peer);
    // Not: it was reset meanwhile.
    if (getpeername(connection.get(), reinterpret_cast<sockaddr*>(&held.peer), &held.peer_length) != 0)
      return;
    held.placeholder = connect_placeholder(one.at);
    if (!held.placeholder.valid()) return;
    held.connection = std::move(connection);
    held_.push_back(std::move(held));
    return;
  }
}

void Unaccepted::take_all() {
  for (const WaitingListener& one : find_waiting()) take_from(one.fd.get(), one.at);
}

// First the placeholder, at the end of the queue, then the connection from its beginning: the program finds
// as many in it as before, in the same order.
void Unaccepted::take_from(int listener, const sockaddr_in& at) {
  const Alarm alarm;
  const uint32_t count = waiting_in(listener);
  for (uint32_t i = 0; i < count; ++i) {
    Held one;
    one.placeholder = connect_placeholder(at);
    if (!one.placeholder.valid()) return;
    // From here on somebody may accept it.
    held_.push_back(std::move(one));
    // Fewer: the program has accepted one meanwhile, or another socket has got the placeholder.
    if (waiting_in(listener) < count + 1) return;
    sockaddr_storage peer{};
    int length = sizeof(peer);
    ScopedFd connection(
        static_cast<int>(sys::call(__NR_accept4, listener, &peer, &length, static_cast<long>(SOCK_CLOEXEC))));
    if (!connection.valid()) return;
    Held& held = held_.back();
    if (const uint16_t port = placeholder_port(peer); port != 0) {  // of an earlier checkpoint
      Held* earlier = find(port);
      if (earlier == nullptr) continue;
      held.connection = std::move(earlier->connection);
      held.peer = earlier->peer;
      held.peer_length = earlier->peer_length;
      held_.erase(held_.begin() + (earlier - held_.data()));
      continue;
    }
    // As the job knows it: by libc.
    held.peer_length = sizeof(held.peer);
    if (getpeername(connection.get(), reinterpret_cast<sockaddr*>(&held.peer), &held.peer_length) != 0) {
      held.peer = peer;  // reset meanwhile
      held.peer_length = static_cast<socklen_t>(length);
    }
    held.connection = std::move(connection);
  }
}

}  // namespace ckpt::cluster
