#include "cli/back/descriptors/new_connections.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>

#include "cli/back/descriptors/datagram_peers.h"
#include "cli/back/descriptors/image_socket.h"
#include "restart/channels/hosts_plan.h"

namespace ckpt::cli {

namespace {

// Sockets of the program at a port that a new socket needs, too: the kernel allows that only if all of them
// have SO_REUSEADDR, and those that listen SO_REUSEPORT. They have that as long as this object lives.
class SharedPorts {
 public:
  SharedPorts() = default;
  SharedPorts(const SharedPorts&) = delete;
  ~SharedPorts() {
    for (const Changed& one : changed_) set_int(one.fd.get(), SOL_SOCKET, one.option, 0);
  }
  void allow(ScopedFd fd, int option) {
    int is = 0;
    socklen_t length = sizeof(is);
    if (getsockopt(fd.get(), SOL_SOCKET, option, &is, &length) != 0 || is != 0) return;
    set_int(fd.get(), SOL_SOCKET, option, 1);
    changed_.push_back({std::move(fd), option});
  }

 private:
  struct Changed {
    ScopedFd fd;
    int option;
  };
  std::vector<Changed> changed_;
};

ScopedFd descriptor_of(const StandingMember& m, int fd) {
  return ScopedFd(static_cast<int>(syscall(SYS_pidfd_getfd, m.pidfd, fd, 0)));
}

bool is_four(const SocketName& name) { return end_text(name).starts_with(std::string(20, '0') + "ffff"); }

// May what is sent to `to` arrive in that listening socket?
bool takes(const ImageSocket& listener, const SocketName& to) {
  if (listener.local.port() != to.port()) return false;
  const std::string at = end_text(listener.local), address = at.substr(0, 32);
  if (at == end_text(to)) return true;
  if (is_four(to) && listener.detail.domain == AF_INET6)
    return listener.detail.ipv6_only == 0 && address == std::string(32, '0');
  return address == (is_four(to) ? std::string(20, '0') + "ffff00000000" : std::string(32, '0'));
}

class NewConnections {
 public:
  NewConnections(const std::vector<StandingMember>& members, OtherHosts& others)
      : members_(members), others_(others), builder_(&working_, {}, {}) {}

  Result<std::vector<ReplacedFiles>> make() {
    CKPT_TRY(working_.open_above(-1));
    for (size_t i = 0; i < members_.size(); ++i) CKPT_TRY(add(i));
    CKPT_TRY(lend_sockets());
    CKPT_TRY(builder_.connect());
    CKPT_TRY(builder_.fill([](int, uint32_t) -> Result<int> { return -1; }));
    std::vector<ReplacedFiles> all(members_.size());
    int error = 0;
    builder_.for_each([&](int member, uint32_t open_file, int fd, bool) {
      ScopedFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
      if (!copy.valid()) error = errno;
      all[static_cast<size_t>(member)].emplace(open_file, std::move(copy));
    });
    if (error != 0)
      return make_error(ExitCode::kSystem, error,
                        "no descriptors left for connections to other hosts ({}); raise ulimit -n",
                        errno_name(error));
    return all;
  }

  std::vector<ChannelBuilder::Stranger> take_strangers() { return builder_.take_strangers(); }

 private:
  // Adds the connections to the lost host alone; all other connections are there.
  Result<void> add(size_t member) {
    CKPT_TRY(check_other_sockets(members_[member], others_));
    std::map<uint64_t, int> others;
    for (const auto& f : members_[member].then->open_files) {
      const ImageSocket s = socket_of(f);
      if (s.is_tcp() && others_.leads_to_lost(s.local, s.remote))
        ports_.insert(s.local.port());
      else
        others[f.record.object] = 1;
    }
    builder_.add(static_cast<int>(member), *members_[member].then, others);
    return {};
  }

  // All that listen where others arrive: of several at one port the kernel chooses one.
  Result<void> lend_sockets() {
    for (const StandingMember& m : members_) {
      for (const auto& f : m.now->open_files) {
        const ImageSocket s = socket_of(f);
        const int fd = first_descriptor(*m.now, f.record.id);
        if (!s.is_tcp() || fd < 0) continue;
        std::vector<std::string> names;
        if (s.listens()) {
          builder_.for_each_awaited([&](const SocketName& to) {
            if (takes(s, to)) names.push_back(end_text(to));
          });
        }
        const uint16_t port = s.local.port();
        const bool shared = s.listens() ? builder_.connects_from(port) : ports_.contains(port);
        if (names.empty() && !shared) continue;
        ScopedFd ours = descriptor_of(m, fd);
        if (!ours.valid())
          return make_error(ExitCode::kPermission, errno, "{}: cannot be looked at ({})", f.path,
                            errno_name(errno));
        if (shared && s.listens()) builder_.share_port(port);
        if (shared) shared_ports_.allow(descriptor_of(m, fd), s.listens() ? SO_REUSEPORT : SO_REUSEADDR);
        if (!names.empty()) builder_.use_listener(names, std::move(ours));
      }
    }
    return {};
  }

  const std::vector<StandingMember>& members_;
  OtherHosts& others_;
  WorkingFds working_;
  SharedPorts shared_ports_;
  ChannelBuilder builder_;
  std::set<uint16_t> ports_;
};

}  // namespace

bool leads_elsewhere_now(const ImageSocket& s) {
  if (s.remote.length == 0 || (s.detail.domain != AF_INET && s.detail.domain != AF_INET6)) return false;
  SocketName now = s.remote;
  hosts_plan()->translate_other(now, {});
  return end_text(now) != end_text(s.remote);
}

Result<void> check_other_sockets(const StandingMember& member, const OtherHosts& others) {
  for (const auto& f : member.then->open_files) {
    const ImageSocket s = socket_of(f);
    if (!leads_elsewhere_now(s) || (s.is_tcp() && others.leads_to_lost(s.local, s.remote)) ||
        is_datagram_peer(member, f, s))
      continue;
    return make_error(ExitCode::kUnsupported, 0, "{} of process {} is connected to the host that is gone",
                      f.path, member.then->process.record.pid);
  }
  return {};
}

Result<std::vector<ReplacedFiles>> connect_again(const std::vector<StandingMember>& members,
                                                 OtherHosts& others, Strangers& strangers) {
  if (!others.lost_a_host()) return std::vector<ReplacedFiles>(members.size());
  NewConnections connections(members, others);
  auto made = connections.make();
  strangers.add(connections.take_strangers());
  return made;
}

}  // namespace ckpt::cli
