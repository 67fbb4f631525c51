#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "restart/channels/channel_builder.h"
#include "restart/channels/made_by.h"
#include "restart/channels/unix_names.h"
#include "restart/files/vanished_file.h"

// Unix sockets: pairs, connections by name, those that wait to be accepted, datagram sockets.

namespace ckpt {
namespace {

// Clients that are not of the job come as soon as somebody listens at their server's name again. Their
// connections are closed: they find the program itself when they try again.
ScopedFd accept_of(int listener, pid_t connected_by) {
  for (;;) {
    ScopedFd accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    ucred by{};
    socklen_t size = sizeof(by);
    if (!accepted.valid() || getsockopt(accepted.get(), SOL_SOCKET, SO_PEERCRED, &by, &size) != 0 ||
        by.pid == connected_by)
      return accepted;
  }
}

// Clients that are not of the job may be before it, and are accepted first.
constexpr int kRoomForOne = 64;

// Closes connections that wait there, none of which is the job's.
void drop_some(int listener) {
  constexpr int kAtOnce = 64;
  const int flags = fcntl(listener, F_GETFL);
  fcntl(listener, F_SETFL, flags | O_NONBLOCK);
  for (int i = 0; i < kAtOnce && ScopedFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).valid(); ++i) {
  }
  fcntl(listener, F_SETFL, flags);
}

bool is_same(const ucred& a, const ucred& b) { return a.pid == b.pid && a.uid == b.uid && a.gid == b.gid; }

}  // namespace

Result<void> ChannelBuilder::connect_unix() {
  // Listening and bound ones first: others connect to their names.
  for (auto& s : sockets_) {
    if (s->detail.domain != AF_UNIX || s->detail.backlog < 0) continue;
    CKPT_TRY(make(*s));
    s->listens_with = std::max(s->detail.backlog, room_while_making(*s));
    if (!made_as(*s, s->made_by, [&] { return listen(s->fd, s->listens_with); })) return cannot_make(*s);
    s->listens_as = s->made_by;
  }
  for (auto& s : sockets_) {
    if (s->detail.domain != AF_UNIX || s->fd >= 0 || s->detail.type == SOCK_DGRAM || s->listener != nullptr)
      continue;
    if (s->link.peer == 0 && (s->link.flags & (kLinkPeerGone | kLinkUnaccepted)) == 0)
      continue;  // not connected: made later
    if (s->peer == nullptr) {
      CKPT_TRY(connect_without_peer(*s));
    } else if (s->name.length == 0 && s->peer->name.length == 0) {
      CKPT_TRY(connect_pair(*s));
    } else {
      // The accepted end has the name of the listener; the other end had connected to that name.
      ChannelSocket* other = s->peer;
      const bool mine = s->name.length != 0 && (other->name.length == 0 || was_accepted(*s, *other));
      ChannelSocket& server = mine ? *s : *other;
      ChannelSocket& client = mine ? *other : *s;
      CKPT_TRY(connect_by_name(client, &server, server.name));
    }
  }
  give_back_names();
  // The sockets that wait to be accepted, in their order.
  std::vector<ChannelSocket*> waiting;
  for (auto& s : sockets_)
    if (s->detail.domain == AF_UNIX && s->fd < 0 && s->listener != nullptr) waiting.push_back(s.get());
  std::stable_sort(waiting.begin(), waiting.end(), [](const ChannelSocket* a, const ChannelSocket* b) {
    return a->link.position < b->link.position;
  });
  for (ChannelSocket* s : waiting) {
    CKPT_TRY(make(*s));
    ChannelSocket& listener = *s->listener;
    if (!listener.has_waiting) {
      listener.listens_with = std::max(listener.detail.backlog, kRoomWhileMaking);
      made_as(listener, listener.listens_as, [&] { return listen(listener.fd, listener.listens_with); });
    }
    listen_for(*s, {listener.fd, listener.listens_with, &listener.listens_as});
    // Before the connection is accepted, nobody can see which of the processes that have the socket had
    // connected it.
    const int room_in = std::exchange(listener.has_waiting, true) ? -1 : listener.fd;
    if (!connect_at_once(*s, s->fd, listener, listener.name, process_of(*s), room_in)) {
      say("{}: the connection that waits to be accepted cannot be made again ({})", describe(*s),
          errno_name(errno));
    }
  }
  // Datagram sockets that have no name and each other are a pair; all others are bound, and connected when
  // what waits in them has been sent: a connected one takes messages from its peer only.
  for (auto& s : sockets_) {
    if (!s->is(AF_UNIX, SOCK_DGRAM) || s->fd >= 0) continue;
    if (s->peer != nullptr && s->peer->fd < 0 && s->peer->name.length == 0) {
      CKPT_TRY(connect_pair(*s));
    } else if (s->link.peer != 0 && s->peer == nullptr && s->peer_name.length == 0) {
      CKPT_TRY(connect_without_peer(*s));  // an unnamed peer that is elsewhere
    } else if (s->has(kLinkPeerGone) && s->peer_name.length == 0) {
      CKPT_TRY(connect_without_peer(*s));
    } else {
      CKPT_TRY(make(*s));
    }
  }
  // Others may have listened at it when those that came before connected.
  for (auto& s : sockets_) {
    if (s->detail.domain != AF_UNIX || s->detail.backlog < 0) continue;
    if (is_same(s->listens_as, s->made_by) && s->listens_with == s->detail.backlog) continue;
    made_as(*s, s->made_by, [&] { return listen(s->fd, s->detail.backlog); });
  }
  return {};
}

// Of two ends with names: the one whose name is that of a listening socket. Where that is gone, the one that
// was made later.
bool ChannelBuilder::was_accepted(const ChannelSocket& one, const ChannelSocket& other) const {
  auto listens = [this](const ChannelSocket& end) {
    return std::any_of(sockets_.begin(), sockets_.end(), [&](const auto& s) {
      return s->is(AF_UNIX, end.detail.type) && s->detail.backlog >= 0 && s->name == end.name;
    });
  };
  if (const bool first = listens(one); first != listens(other)) return first;
  return one.file->record.inode > other.file->record.inode;
}

// The length that the queue of a listening socket needs for those of the job that connect to it and are
// accepted at once.
int ChannelBuilder::room_while_making(const ChannelSocket& listener) const {
  const bool is_needed = std::any_of(sockets_.begin(), sockets_.end(), [&](const auto& s) {
    return s->is(AF_UNIX, listener.detail.type) && s->detail.backlog < 0 &&
           (s->name == listener.name || s->peer_name == listener.name);
  });
  return is_needed ? kRoomForOne : 0;
}

ucred ChannelBuilder::process_of(const ChannelSocket& s) {
  const ProcessRecord& p = s.meta->process.record;
  return {p.pid, p.uid[1], p.gid[1]};
}

bool ChannelBuilder::made_as(const ChannelSocket& s, const ucred& who, const std::function<long()>& call,
                             pid_t* by) {
  const CallAs made = call_as(who, [&](std::array<int, 2>&) { return call(); });
  if (made.no_process != 0) say_maker(s, who, made.no_process);
  if (by != nullptr) *by = made.no_process != 0 || who.pid <= 0 ? getpid() : who.pid;
  errno = made.error;
  return made.result >= 0;
}

// Where clients that are not of the job have filled the queue connect(2) would wait until somebody accepts
// them, which nobody does. room_in: the listening socket, in which none of the job's connections waits; -1:
// one does.
bool ChannelBuilder::connect_at_once(const ChannelSocket& s, int fd, const ChannelSocket& like,
                                     const SocketName& at, const ucred& who, int room_in, pid_t* by) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  const bool connected = made_as(
      s, who,
      [&] {
        while (!connect_name(like, fd, at)) {
          if (errno != EAGAIN || room_in < 0) return -1L;
          drop_some(room_in);
        }
        return 0L;
      },
      by);
  const int error = errno;
  fcntl(fd, F_SETFL, 0);  // settle() sets what the program had
  errno = error;
  return connected;
}

void ChannelBuilder::say_maker(const ChannelSocket& s, const ucred& who, int error) const {
  say("{}: process {}, which had made its connection, cannot be named as its maker ({}): SO_PEERCRED tells "
      "another",
      describe(s), who.pid, errno_name(error));
}

// A client is told, as its peer, the process that listens there when it connects (SO_PEERCRED).
void ChannelBuilder::listen_for(const ChannelSocket& client, const Listener& listener) {
  if (client.made_by.pid == 0 || is_same(client.made_by, *listener.listens_as)) return;
  made_as(client, client.made_by, [&] { return listen(listener.fd, listener.backlog); });
  *listener.listens_as = client.made_by;
}

// Both ends, as one call of socketpair(2) by the process that had made them.
Result<std::pair<ScopedFd, ScopedFd>> ChannelBuilder::make_pair(const ChannelSocket& s) {
  // A process outside of the job that had made the pair may live still, but is not at the other end any more.
  const ucred who = s.has(kLinkOutside) ? ucred{} : s.made_by;
  const CallAs made = call_as(who, [&](std::array<int, 2>& pair) {
    return socketpair(s.detail.domain, s.detail.type | SOCK_CLOEXEC, s.detail.protocol, pair.data());
  });
  if (made.no_process != 0) say_maker(s, who, made.no_process);
  errno = made.error;
  if (made.result != 0) return cannot_make(s);
  return std::pair(ScopedFd(made.values[0]), ScopedFd(made.values[1]));
}

Result<void> ChannelBuilder::connect_pair(ChannelSocket& s) {
  auto pair = make_pair(s);
  if (!pair.ok()) return pair.error();
  ScopedFd here = std::move(pair->first), there = std::move(pair->second);
  CKPT_TRY(park(s, std::move(here)));
  CKPT_TRY(park(*s.peer, std::move(there)));
  // A datagram socket may have a name as well.
  for (ChannelSocket* end : {&s, s.peer}) {
    if (end->name.length == 0) continue;
    bool unlink_after = false;
    CKPT_TRY(bind_name(*end, end->fd, end->name, unlink_after));
    end->unlink_name = end->has(kLinkFileGone);
  }
  return {};
}

// A listening socket with this name: the program's, or one of ours for the time being.
Result<ChannelBuilder::Listener> ChannelBuilder::listener_at(const ChannelSocket& like,
                                                             const SocketName& at) {
  for (auto& s : sockets_) {
    if (s->detail.domain == AF_UNIX && s->detail.backlog >= 0 && s->detail.type == like.detail.type &&
        s->name == at)
      return Listener{s->fd, s->listens_with, &s->listens_as};
  }
  std::string key = fmt::format("{} ", like.detail.type);
  key.append(reinterpret_cast<const char*>(&at.address), at.length);
  if (auto known = helpers_.find(key); known != helpers_.end())
    return Listener{known->second.fd, kRoomForOne, &known->second.listens_as};
  ScopedFd fd(socket(AF_UNIX, like.detail.type | SOCK_CLOEXEC, 0));
  bool unlink_after = false;
  const bool is_lent = borrow_name(at, like);
  CKPT_TRY(bind_name(const_cast<ChannelSocket&>(like), fd.get(), at, unlink_after));
  if (listen(fd.get(), kRoomForOne) != 0) return cannot_make(like);
  auto up = working_->park(std::move(fd), "a socket");
  if (!up.ok()) return up.error();
  Helper& helper = helpers_[key];
  helper = {*up, {}};
  if (unlink_after && !is_lent) leave_over(at, like);
  return Listener{*up, kRoomForOne, &helper.listens_as};
}

// client gets connected to `at`; the accepted end is returned. The ends are told of each other which process
// connected, and which one listened then (SO_PEERCRED).
Result<ScopedFd> ChannelBuilder::connect_to(ChannelSocket& client, const SocketName& at, bool make_client,
                                            const ucred& connects) {
  auto listener = listener_at(client, at);
  if (!listener.ok()) return listener.error();
  ScopedFd from;
  int fd = client.fd;
  if (make_client) {
    CKPT_TRY(make(client));
    fd = client.fd;
  } else {
    from.reset(socket(AF_UNIX, client.detail.type | SOCK_CLOEXEC, 0));
    fd = from.get();
  }
  if (fd < 0) return cannot_make(client);
  if (make_client) listen_for(client, *listener);
  pid_t connected_by = getpid();
  if (!connect_at_once(client, fd, client, at, connects, listener->fd, &connected_by))
    return cannot_make(client);
  const int flags = fcntl(listener->fd, F_GETFL);
  fcntl(listener->fd, F_SETFL, flags & ~O_NONBLOCK);
  ScopedFd accepted = accept_of(listener->fd, connected_by);
  fcntl(listener->fd, F_SETFL, flags);
  if (!accepted.valid()) return cannot_make(client);
  if (!make_client) CKPT_TRY(park_far_end(client, std::move(from)));
  return accepted;
}

Result<void> ChannelBuilder::connect_by_name(ChannelSocket& client, ChannelSocket* server,
                                             const SocketName& at) {
  auto accepted = connect_to(client, at, true, server->made_by);
  if (!accepted.ok()) return accepted.error();
  return park(*server, std::move(*accepted));
}

// The other end is gone, or outside: for the time being one of ours is there.
Result<void> ChannelBuilder::connect_without_peer(ChannelSocket& s) {
  if (s.has(kLinkOutside)) {
    // Its name there is somebody else's.
  } else if (s.peer_name.length != 0 && s.name != s.peer_name) {  // it had connected
    auto accepted = connect_to(s, s.peer_name, true, process_of(s));
    if (accepted.ok()) return park_far_end(s, std::move(*accepted));
    if (s.fd >= 0) close(s.fd);
    s.fd = -1;  // somebody else has that name now: without it
  } else if (s.name.length != 0 && s.detail.type != SOCK_DGRAM) {  // it had been accepted
    auto accepted = connect_to(s, s.name, false, s.made_by);
    if (accepted.ok()) return park(s, std::move(*accepted));
    if (s.far_end >= 0) close(s.far_end);
    s.far_end = -1;
  }
  auto pair = make_pair(s);
  if (!pair.ok()) return pair.error();
  CKPT_TRY(park(s, std::move(pair->first)));
  CKPT_TRY(park_far_end(s, std::move(pair->second)));
  if (s.name.length != 0 && s.detail.type == SOCK_DGRAM) {
    bool unlink_after = false;
    CKPT_TRY(bind_name(s, s.fd, s.name, unlink_after));
    s.unlink_name = s.has(kLinkFileGone);
  }
  return {};
}

// Connects again what was connected by name. In a pair of which one end had connected elsewhere, that end
// leaves.
Result<void> ChannelBuilder::connect_datagrams() {
  for (auto& s : sockets_) {
    if (!s->is(AF_UNIX, SOCK_DGRAM) || s->fd < 0) continue;
    const SocketName& at = s->peer != nullptr ? s->peer->name : s->peer_name;
    if (at.length != 0 && (s->link.peer != 0 || s->peer_name.length != 0)) {
      if (!connect_name(s->peer != nullptr ? *s->peer : *s, s->fd, at) && s->peer != nullptr) {
        say("{}: {} cannot be reached again ({})", describe(*s), at.text(), errno_name(errno));
      }
    }
  }
  for (auto& s : sockets_) {
    if (s->detail.domain == AF_UNIX || s->detail.type != SOCK_DGRAM || s->fd < 0) continue;
    if (s->has(kLinkError)) refuse_datagram(*s);
    if (s->peer_name.length != 0 && ::connect(s->fd, s->peer_name.get(), s->peer_name.length) != 0) {
      say("{}: its peer cannot be reached from here ({})", describe(*s), errno_name(errno));
    }
  }
  return {};
}

}  // namespace ckpt
