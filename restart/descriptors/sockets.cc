#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

#include "base/bytes.h"
#include "restart/descriptors/builder.h"

// Unix socket pairs with the messages in them, and sockets without a connection.

namespace ckpt {
namespace {

struct SocketFacts {
  SocketDetail detail{};
  sockaddr_storage address{}, peer{};
};

bool read_facts(const ParsedOpenFile& file, SocketFacts& facts) {
  bool found = false;
  for_each_detail<SocketDetail>(file, OpenFileDetail::kSocket, [&](const SocketDetail& d, Blob rest) {
    if (d.address_len > sizeof(facts.address) || d.peer_len > sizeof(facts.peer) ||
        uint64_t{d.address_len} + d.peer_len > rest.size()) {
      return;
    }
    facts.detail = d;
    std::memcpy(&facts.address, rest.data(), d.address_len);
    std::memcpy(&facts.peer, rest.data() + d.address_len, d.peer_len);
    found = true;
  });
  return found;
}

void set(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

void set_options(int fd, const SocketDetail& d) {
  set(fd, SOL_SOCKET, SO_REUSEADDR, d.reuse_address);
  set(fd, SOL_SOCKET, SO_REUSEPORT, d.reuse_port);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, d.keep_alive);
  if (d.domain == AF_UNIX) set(fd, SOL_SOCKET, SO_PASSCRED, d.pass_credentials);
  // The kernel doubles what it is given.
  set(fd, SOL_SOCKET, SO_SNDBUF, d.send_buffer / 2);
  set(fd, SOL_SOCKET, SO_RCVBUF, d.receive_buffer / 2);
}

// Only what is not already so: some options may be read by everybody, and set only with a right. False: at
// least one could not.
bool set_other_options(int fd, const ParsedOpenFile& file) {
  bool all = true;
  for_each_detail<SocketOptionDetail>(file, OpenFileDetail::kSocketOption,
                                      [&](const SocketOptionDetail& o, Blob) {
                                        if (o.length > sizeof(o.value)) return;
                                        uint8_t now[sizeof(o.value)] = {};
                                        socklen_t length = sizeof(now);
                                        if (getsockopt(fd, o.level, o.name, now, &length) == 0 &&
                                            length == o.length && std::memcmp(now, o.value, length) == 0)
                                          return;
                                        all = setsockopt(fd, o.level, o.name, o.value, o.length) == 0 && all;
                                      });
  return all;
}

Error cannot_make(const ParsedOpenFile& file) {
  return make_error(errno == EADDRINUSE ? ExitCode::kUnavailable : ExitCode::kSystem, errno,
                    "{} cannot be made again ({})", file.path, errno_name(errno));
}

std::string text_of(const sockaddr_storage& address, uint32_t length) {
  if (address.ss_family == AF_UNIX) {
    auto* unix_address = reinterpret_cast<const sockaddr_un*>(&address);
    std::string name(unix_address->sun_path, length - offsetof(sockaddr_un, sun_path));
    if (!name.empty() && name[0] == '\0') name[0] = '@';
    return name.substr(0, name.find('\0'));
  }
  auto* internet = reinterpret_cast<const sockaddr_in*>(&address);
  return fmt::format("port {}", ntohs(internet->sin_port));
}

// A socket file that nobody listens on any more, as the killed program left it.
bool is_left_over(const std::string& path, const SocketFacts& facts) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
  ScopedFd probe(socket(AF_UNIX, facts.detail.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&facts.address), facts.detail.address_len) !=
             0 &&
         errno == ECONNREFUSED;
}

// The port may wait: connections of the killed program hold it for a minute, unless both they and we say that this is
// no matter. A port that somebody else listens on is refused all the same. listen(2) asks once more.
bool may_wait_for_port(const SocketDetail& d) {
  return (d.domain == AF_INET || d.domain == AF_INET6) && d.type == SOCK_STREAM;
}

}  // namespace

// Both ends at once; each record takes its own.
Result<ScopedFd> DescriptorBuilder::make_socket_pair(const ParsedOpenFile& file) {
  SocketFacts facts;
  if (!read_facts(file, facts)) return make_placeholder(file);
  auto mine = socket_ends_.find(file.record.object);
  if (mine == socket_ends_.end()) {
    int pair[2];
    if (socketpair(facts.detail.domain, facts.detail.type | SOCK_CLOEXEC, facts.detail.protocol, pair) != 0) {
      return cannot_make(file);
    }
    ScopedFd here(pair[0]), there(pair[1]);
    CKPT_TRY(send_messages(file, file.record.object, there.get()));
    if (file.record.value != 0) {
      CKPT_TRY(send_messages(file, file.record.value, here.get()));
      auto parked = options_.working->park(std::move(there), "a socket");
      if (!parked) return parked.error();
      socket_ends_[file.record.value] = *parked;
    }
    there.reset();  // gone at the checkpoint too: what it sent is still there
    auto parked = options_.working->park(std::move(here), "a socket");
    if (!parked) return parked.error();
    mine = socket_ends_.insert({file.record.object, *parked}).first;
  }
  ScopedFd made(fcntl(mine->second, F_DUPFD_CLOEXEC, 0));
  if (!made.valid()) return cannot_make(file);
  set_options(made.get(), facts.detail);
  if (!set_other_options(made.get(), file)) say_options(file);
  if ((facts.detail.shut_down & 1) != 0) shutdown(made.get(), SHUT_RD);
  if ((facts.detail.shut_down & 2) != 0) shutdown(made.get(), SHUT_WR);
  fcntl(made.get(), F_SETFL, static_cast<int>(file.record.open_flags) & O_NONBLOCK);
  return made;
}

void DescriptorBuilder::say_options(const ParsedOpenFile& file) {
  say("{}: an option of the socket cannot be set as it was ({})", describe(file, first_descriptor(file)),
      errno_name(errno));
}

// The messages that waited at the end with the number `receiver` are sent to it by the other end.
Result<void> DescriptorBuilder::send_messages(const ParsedOpenFile& file, uint64_t receiver, int sender) {
  constexpr int kRoom = 64 << 20;
  if (setsockopt(sender, SOL_SOCKET, SO_SNDBUFFORCE, &kRoom, sizeof(kRoom)) != 0)
    set(sender, SOL_SOCKET, SO_SNDBUF, kRoom);
  for (const auto& c : meta_.contents) {
    if (c.record.open_file == 0 || c.record.object != receiver) continue;
    for (size_t done = 0; done < c.bytes.size();) {  // a stream may take them in parts
      ssize_t n = send(sender, c.bytes.data() + done, c.bytes.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n <= 0) {
        return make_error(ExitCode::kSystem, errno,
                          "the {} bytes in {} do not fit into a new socket pair ({})", c.bytes.size(),
                          file.path, errno_name(errno));
      }
      done += static_cast<size_t>(n);
    }
  }
  return {};
}

Result<ScopedFd> DescriptorBuilder::make_socket(const ParsedOpenFile& file) {
  SocketFacts facts;
  if (!read_facts(file, facts)) return make_placeholder(file);
  const SocketDetail& d = facts.detail;
  ScopedFd made(socket(d.domain, d.type | SOCK_CLOEXEC, d.protocol));
  if (!made.valid()) return cannot_make(file);
  set_options(made.get(), d);
  if (!set_other_options(made.get(), file)) say_options(file);
  if (d.domain == AF_INET6) set(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, d.ipv6_only);
  if (d.address_len != 0) {
    const std::string name = text_of(facts.address, d.address_len);
    if (d.domain == AF_UNIX && name[0] != '@' && is_left_over(name, facts)) unlink(name.c_str());
    if (may_wait_for_port(d)) set(made.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(made.get(), reinterpret_cast<const sockaddr*>(&facts.address), d.address_len) != 0) {
      const int e = errno;
      if (d.domain == AF_UNIX && name[0] != '@' && (e == ENOENT || e == ENOTDIR)) {
        // Its directory is gone: nobody can find it by that name, here or before. A name of the kernel's
        // choice, for only a socket with a name can listen.
        say("{}: the directory of its name {} is gone: it has no such name now",
            describe(file, first_descriptor(file)), name);
        sockaddr none{};
        none.sa_family = AF_UNIX;
        if (d.backlog >= 0) (void)!bind(made.get(), &none, sizeof(none.sa_family));
      } else {
        return make_error(
            e == EACCES || e == EPERM ? ExitCode::kPermission : ExitCode::kUnavailable, e,
            "{}: {} cannot be taken again ({}): end the program that has it; connections of the killed "
            "program without SO_REUSEADDR hold it for a minute",
            describe(file, first_descriptor(file)), name, errno_name(e));
      }
    }
  }
  if (d.backlog >= 0 && listen(made.get(), d.backlog) != 0) return cannot_make(file);
  if (may_wait_for_port(d)) set(made.get(), SOL_SOCKET, SO_REUSEADDR, d.reuse_address);
  if (d.peer_len != 0 &&
      connect(made.get(), reinterpret_cast<const sockaddr*>(&facts.peer), d.peer_len) != 0) {
    say("{}: its peer cannot be reached from here ({})", describe(file, first_descriptor(file)),
        errno_name(errno));
  }
  fcntl(made.get(), F_SETFL, static_cast<int>(file.record.open_flags) & O_NONBLOCK);
  return made;
}

}  // namespace ckpt
