#include "restart/channels/channel_builder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <netpacket/packet.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/clock.h"
#include "base/memory/bytes.h"
#include "image/read/open_file_details.h"
#include "restart/channels/ended_connections.h"
#include "restart/channels/port_wait.h"
#include "restart/channels/unix_names.h"

namespace ckpt {
namespace {

bool read_name(Blob& from, uint32_t length, SocketName& name) {
  if (length > sizeof(name.address) || length > from.size()) return false;
  std::memcpy(&name.address, from.data(), length);
  name.length = length;
  from = from.subspan(length);
  return true;
}

}  // namespace

bool read_socket_names(const ParsedOpenFile& file, SocketDetail& detail, SocketName& own, SocketName& peer) {
  bool found = false;
  for_each_detail<SocketDetail>(file, OpenFileDetail::kSocket, [&](const SocketDetail& d, Blob rest) {
    detail = d;
    found = read_name(rest, d.address_len, own) && read_name(rest, d.peer_len, peer);
  });
  return found;
}

namespace {

bool read_socket(ChannelSocket& s) {
  const bool found = read_socket_names(*s.file, s.detail, s.name, s.peer_name);
  bool linked = false;
  s.link.peek_offset = -1;
  for_each_detail<SocketLinkDetail>(*s.file, OpenFileDetail::kSocketLink,
                                    [&](const SocketLinkDetail& l, Blob) {
                                      s.link = l;
                                      linked = true;
                                    });
  for_each_detail<SocketPeerDetail>(*s.file, OpenFileDetail::kSocketPeer,
                                    [&](const SocketPeerDetail& p, Blob) {
                                      s.made_by = {p.pid, p.uid, p.gid};
                                    });
  if (!linked && static_cast<OpenFileKind>(s.file->record.kind) == OpenFileKind::kSocketPair) {
    s.link.peer = s.file->record.value;  // of an older image
    if (s.link.peer == 0) s.link.flags |= kLinkPeerGone;
  }
  return found;
}

// Messages with their details; of older images, only bytes.
void read_messages(ChannelSocket& s) {
  for_each_detail<SocketMessageDetail>(
      *s.file, OpenFileDetail::kSocketMessage, [&](const SocketMessageDetail& d, Blob rest) {
        ChannelMessage m;
        m.detail = d;
        Blob at = rest;
        const uint64_t padded = (uint64_t{d.address_len} + 3) & ~uint64_t{3};
        if (!read_name(at, d.address_len, m.sender) || padded + uint64_t{d.file_count} * 4 > rest.size())
          return;
        ByteReader reader(rest.subspan(padded));
        for (uint32_t i = 0; i < d.file_count; ++i) m.files.push_back(reader.get<uint32_t>());
        s.messages.push_back(std::move(m));
      });
  const bool old = s.messages.empty();
  for (const auto& c : s.meta->contents) {
    if (c.record.open_file == 0 || c.record.object != s.object) continue;
    if (old) {
      ChannelMessage m;
      m.detail.length = c.bytes.size();
      m.parts.push_back(c.bytes);
      s.messages.push_back(std::move(m));
      continue;
    }
    // A long message is in more than one record: the number goes on with its bytes.
    ChannelMessage* owner = nullptr;
    for (auto& m : s.messages)
      if (m.detail.number <= c.record.offset) owner = &m;
    if (owner != nullptr && owner->detail.number == c.record.offset) owner->parts.push_back(c.bytes);
  }
}

// A message without a byte is seen only by the process that looks first (the kernel marks the message), so
// the image of that process has the most.
void take_more_messages(ChannelSocket& s, int member, const ImageMeta& meta, const ParsedOpenFile& file) {
  if (s.detail.type == SOCK_STREAM) return;
  ChannelSocket other;
  other.meta = &meta;
  other.file = &file;
  other.object = s.object;
  read_messages(other);
  if (other.messages.size() <= s.messages.size()) return;
  s.messages = std::move(other.messages);
  s.messages_of = member;
  ChannelBuilder::translate_senders(s);
}

}  // namespace

bool SocketName::operator==(const SocketName& o) const {
  return length == o.length && std::memcmp(&address, &o.address, length) == 0;
}

std::string SocketName::text() const {
  if (family() == AF_UNIX) {
    auto* unix_address = reinterpret_cast<const sockaddr_un*>(&address);
    std::string name(unix_address->sun_path, length - offsetof(sockaddr_un, sun_path));
    if (!name.empty() && name[0] == '\0') {
      name[0] = '@';
      return name;
    }
    return name.substr(0, name.find('\0'));
  }
  return fmt::format("port {}", port());
}

void ChannelBuilder::add(int member, const ImageMeta& meta, const std::map<uint64_t, int>& others) {
  for (const auto& file : meta.open_files) {
    const auto kind = static_cast<OpenFileKind>(file.record.kind);
    if (kind != OpenFileKind::kSocketPair && kind != OpenFileKind::kSocket &&
        kind != OpenFileKind::kConnection)
      continue;
    if (others.count(file.record.object) != 0) continue;
    auto known = by_object_.find(file.record.object);
    if (known != by_object_.end()) {  // several members have it
      by_file_[{member, file.record.id}] = known->second;
      known->second->also.push_back(&file);
      take_more_messages(*known->second, member, meta, file);
      continue;
    }
    auto s = std::make_unique<ChannelSocket>();
    s->member = s->messages_of = member;
    s->meta = &meta;
    s->file = &file;
    s->object = file.record.object;
    if (!read_socket(*s)) continue;
    read_file(*s);
    translate(*s);
    read_messages(*s);
    translate_senders(*s);
    by_object_[s->object] = s.get();
    by_file_[{member, file.record.id}] = s.get();
    sockets_.push_back(std::move(s));
  }
}

void ChannelBuilder::link() {
  for (auto& s : sockets_) {
    auto peer = by_object_.find(s->link.peer);
    if (s->link.peer != 0 && peer != by_object_.end()) s->peer = peer->second;
    auto listener = by_object_.find(s->link.listener);
    if (s->link.listener != 0 && listener != by_object_.end()) s->listener = listener->second;
    // Its listener is in another process of the job: the image of the client does not name it.
    if (s->is_tcp() && s->has(kLinkUnaccepted) && s->link.listener == 0)
      s->listener = listening_at(s->peer_name);
    if (s->peer != nullptr || s->listener != nullptr) {
      s->link.flags &= ~uint32_t{kLinkOutside};
    } else if (s->link.peer != 0 && s->detail.type != SOCK_DGRAM && !is_far(*s)) {
      s->link.flags |= kLinkOutside;
      say("{}: the other end of the connection is not here: it is {}", describe(*s),
          s->is_tcp() ? "reset" : "closed there");
    }
  }
}

ChannelSocket* ChannelBuilder::listening_at(const SocketName& at) const {
  auto address_of = [](const SocketName& name) {
    in6_addr six{};
    if (name.family() == AF_INET6) {
      six = reinterpret_cast<const sockaddr_in6&>(name.address).sin6_addr;
    } else {
      six.s6_addr[10] = six.s6_addr[11] = 0xff;
      std::memcpy(six.s6_addr + 12, &reinterpret_cast<const sockaddr_in&>(name.address).sin_addr, 4);
    }
    return six;
  };
  const in6_addr wanted = address_of(at);
  for (const auto& s : sockets_) {
    if (!s->is_tcp() || s->detail.backlog < 0 || s->name.length == 0 || s->name.port() != at.port()) continue;
    const in6_addr here = address_of(s->name);
    const bool any = IN6_IS_ADDR_UNSPECIFIED(&here) ||
                     (IN6_IS_ADDR_V4MAPPED(&here) && here.s6_addr32[3] == htonl(INADDR_ANY));
    if (any || IN6_ARE_ADDR_EQUAL(&here, &wanted)) return s.get();
  }
  return nullptr;
}

int ChannelBuilder::find(int member, uint32_t open_file) const {
  auto it = by_file_.find({member, open_file});
  return it == by_file_.end() ? -1 : it->second->fd;
}

std::string ChannelBuilder::describe(const ChannelSocket& s) const {
  int first = -1;
  for (const auto& d : s.meta->descriptors) {
    if (d.open_file == s.file->record.id && (first < 0 || d.fd < first)) first = d.fd;
  }
  return fmt::format("descriptor {} ({})", first, s.file->path);
}

Error ChannelBuilder::cannot_make(const ChannelSocket& s) const {
  return make_error(ExitCode::kSystem, errno, "{} cannot be made again ({})", describe(s), errno_name(errno));
}

Result<void> ChannelBuilder::park(ChannelSocket& s, ScopedFd fd) {
  auto up = working_->park_at_home(std::move(fd), s.file->record.id, "a socket");
  if (!up.ok()) return up.error();
  s.fd = *up;
  return {};
}

Result<void> ChannelBuilder::park_far_end(ChannelSocket& s, ScopedFd fd) {
  auto up = working_->park(std::move(fd), "a socket");
  if (!up.ok()) return up.error();
  s.far_end = *up;
  return {};
}

// A new socket, not connected; bound if it was. The caller makes it listen.
Result<void> ChannelBuilder::make(ChannelSocket& s) {
  const SocketDetail& d = s.detail;
  ScopedFd fd(socket(d.domain, d.type | SOCK_CLOEXEC, d.protocol));
  if (!fd.valid()) {
    if (errno == EPERM || errno == EACCES) {
      return make_error(ExitCode::kPermission, errno,
                        "{} cannot be made again ({}): it needs rights (CAP_NET_RAW), restart as root",
                        describe(s), errno_name(errno));
    }
    return cannot_make(s);
  }
  set_early_options(fd.get(), s);
  if (s.name.length != 0) {
    bool unlink_after = false;
    CKPT_TRY(bind_name(s, fd.get(), s.name, unlink_after));
    s.unlink_name = s.has(kLinkFileGone);
  }
  return park(s, std::move(fd));
}

// Connections of the killed program may hold the port, for a minute.
bool ChannelBuilder::bind_port(const ChannelSocket& s, int fd, const SocketName& name) {
  PortWait wait(now_ns(CLOCK_MONOTONIC));
  for (bool said = false;; usleep(20'000)) {
    if (bind(fd, name.get(), name.length) == 0) return true;
    const int error = errno;
    const size_t ended = error == EADDRINUSE ? end_ended_connections(name.port()) : 0;
    // The connections that we may end are gone now.
    if (ended != 0 && bind(fd, name.get(), name.length) == 0) return true;
    if (error != EADDRINUSE || !wait.ask_again(ended, now_ns(CLOCK_MONOTONIC))) {
      errno = error;
      return false;
    }
    if (ended != 0 && !std::exchange(said, true) && say_at_once_) {
      say_at_once_(
          fmt::format("{}: {} is kept by the kernel for connections of the killed program, up to a minute: "
                      "waiting for it",
                      describe(s), name.text()));
    }
  }
}

// unlink_after: there was no file of this name.
Result<void> ChannelBuilder::bind_name(ChannelSocket& s, int fd, const SocketName& name, bool& unlink_after) {
  if (is_path(name)) return bind_path(s, fd, name, unlink_after);
  if (name.family() == AF_PACKET) {
    // getsockname(2) tells of as many bytes as the device's address has; bind(2) wants the whole struct.
    if (bind(fd, name.get(), std::max<socklen_t>(name.length, sizeof(sockaddr_ll))) == 0) return {};
    return make_error(ExitCode::kUnavailable, errno, "{}: its device is not there ({}): make it again",
                      describe(s), errno_name(errno));
  }
  if (s.is_tcp() ? bind_port(s, fd, name) : bind(fd, name.get(), name.length) == 0) return {};
  return cannot_take(s, name.text(), errno);
}

Error ChannelBuilder::cannot_take(const ChannelSocket& s, const std::string& name, int error) const {
  return make_error(
      error == EACCES || error == EPERM ? ExitCode::kPermission : ExitCode::kUnavailable, error,
      "{}: {} cannot be taken again ({}): end the program that has it; connections of the killed "
      "program without SO_REUSEADDR hold it for a minute",
      describe(s), name, errno_name(error));
}

Result<void> ChannelBuilder::connect() {
  link();
  CKPT_TRY(connect_far());
  CKPT_TRY(connect_unix());
  CKPT_TRY(connect_tcp());
  for (auto& s : sockets_) {
    if (s->fd >= 0) continue;
    CKPT_TRY(make(*s));
    if (s->detail.backlog >= 0 && listen(s->fd, s->detail.backlog) != 0) return cannot_make(*s);
  }
  return {};
}

// Last: the options that the program has set, the names that files have, O_NONBLOCK.
void ChannelBuilder::settle(ChannelSocket& s) {
  if (const auto unset = set_late_options(s.fd, s)) {
    say("{}: option {} of level {} of the socket cannot be set as it was ({})", describe(s), unset->name,
        unset->level, errno_name(unset->error));
  }
  leave_name(s);
  fcntl(s.fd, F_SETFL, static_cast<int>(s.file->record.open_flags) & O_NONBLOCK);
}

bool ChannelBuilder::put_off(const IsAboutProcess& is_about_process) {
  auto is_early = [&](const ChannelSocket& s, const ChannelMessage& m) {
    const bool shows_sender = gives_pidfds(s) && (m.detail.flags & kMessageCredentials) != 0;
    return !shows_sender && std::none_of(m.files.begin(), m.files.end(),
                                         [&](uint32_t id) { return is_about_process(s.messages_of, id); });
  };
  std::vector<ChannelSocket*> put_off;
  for (auto& s : sockets_) {
    if (s->detail.domain == AF_UNIX && !std::all_of(s->messages.begin(), s->messages.end(),
                                                    [&](const ChannelMessage& m) { return is_early(*s, m); }))
      put_off.push_back(s.get());
  }
  for (ChannelSocket* s : put_off) {
    s->is_put_off = true;
    // Two datagram sockets that are connected to each other become so while the first of them is filled.
    if (s->detail.type == SOCK_DGRAM && s->peer != nullptr && s->peer->peer == s) s->peer->is_put_off = true;
  }
  return has_put_off_ = !put_off.empty();
}

Result<void> ChannelBuilder::fill(const FindOpenFile& find_open_file) {
  CKPT_TRY(fill_queues(false, find_open_file));
  return has_put_off_ ? Result<void>() : end_and_settle();
}

Result<void> ChannelBuilder::fill_rest(const FindOpenFile& find_open_file) {
  CKPT_TRY(fill_queues(true, find_open_file));
  return end_and_settle();
}

Result<void> ChannelBuilder::fill_queues(bool put_off, const FindOpenFile& find_open_file) {
  for (auto& s : sockets_) {
    if (s->fd < 0 || s->messages.empty() || s->is_put_off != put_off) continue;
    if (s->detail.type == SOCK_DGRAM) {
      CKPT_TRY(send_datagrams(*s, find_open_file));
    } else {
      const int from = s->peer != nullptr ? s->peer->fd : s->far_end;
      if (from >= 0) CKPT_TRY(send_messages(*s, from, find_open_file));
    }
  }
  return {};
}

Result<void> ChannelBuilder::end_and_settle() {
  CKPT_TRY(connect_datagrams());
  for (auto& s : sockets_) {
    if (s->fd < 0) continue;
    if (s->far_end >= 0) {
      if (s->is_tcp() && (s->has(kLinkOutside) || s->has(kLinkError))) {
        end_with_error(*s);
      } else if (s->detail.domain == AF_UNIX && s->has(kLinkError)) {
        send(s->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // unread there: reading here gives an error
      }
      close(s->far_end);
      s->far_end = -1;
    }
  }
  for (auto& s : sockets_) {
    if (s->fd < 0 || s->has(kLinkNeverConnected)) continue;
    if ((s->detail.shut_down & 2) != 0) shutdown(s->fd, SHUT_WR);
    if ((s->detail.shut_down & 1) != 0 && !s->is_tcp()) shutdown(s->fd, SHUT_RD);
  }
  for (auto& s : sockets_) {
    if (s->fd < 0) continue;
    if ((s->detail.shut_down & 1) != 0 && s->is_tcp() && !s->has(kLinkNeverConnected))
      shutdown(s->fd, SHUT_RD);
    settle(*s);
  }
  if (!set_group_filters(sockets_))
    say("the program that chooses in a group of sockets (SO_ATTACH_REUSEPORT_CBPF) cannot be set as it was");
  lock_filters(sockets_);
  return {};
}

void ChannelBuilder::hand_over_sockets() {
  for (auto& s : sockets_) s->fd = -1;
}

void ChannelBuilder::close_far_ends() {
  for (auto& s : sockets_) {
    if (s->far_end >= 0) close(s->far_end);
    s->far_end = -1;
  }
  for (auto& [name, helper] : helpers_) close(helper.fd);
  helpers_.clear();
}

void ChannelBuilder::finish() {
  for (auto& s : sockets_) {
    if (s->fd >= 0 && working_->is_working(s->fd)) close(s->fd);
    if (s->far_end >= 0) close(s->far_end);
    s->fd = s->far_end = -1;
  }
  for (auto& [name, helper] : helpers_) close(helper.fd);
  helpers_.clear();
  for (const auto& name : left_over_names_) unlink(name.c_str());
  left_over_names_.clear();
}

}  // namespace ckpt
