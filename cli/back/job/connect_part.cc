#include "cli/back/job/connect_part.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <list>
#include <map>
#include <vector>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/protocol/reconnect_protocol.h"
#include "base/sockets/descriptor_message.h"
#include "cli/back/descriptors/datagram_peers.h"
#include "cli/back/descriptors/image_socket.h"
#include "cli/back/descriptors/new_connections.h"
#include "cli/keeper/host_keeper.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "image/read/image_chain.h"
#include "image/read/manifest.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kHandOverNs = 120'000'000'000;
constexpr int kLookMs = 50;
constexpr const char* kRestartAll = "all hosts have to be restarted";

// A process that stands, and what is to be done in it.
class Process {
 public:
  Process(const ManifestMember& listed, ImageChain image, ScopedFd pidfd)
      : listed_(listed), image_(std::move(image)), pidfd_(std::move(pidfd)) {}

  const ImageMeta& meta() const { return image_.meta(); }
  // The image is of this very moment: nothing has run since.
  StandingMember standing() const { return {&meta(), &meta(), pidfd_.get()}; }
  int pid() const { return listed_.pid; }
  std::string name() const { return fmt::format("process {} ({})", listed_.pid, printable(listed_.name)); }
  bool has_ended() const {
    pollfd end{pidfd_.get(), POLLIN, 0};
    return poll(&end, 1, 0) > 0;
  }

  // Refuses other sockets that could have a connection to that host, and would keep it.
  Result<void> check(const OtherHosts& others) const {
    CKPT_TRY(check_other_sockets(standing(), others));
    bool any = false, on_its_way = false;
    for (const auto& f : meta().open_files) {
      const ImageSocket s = socket_of(f);
      if (s.is_tcp() && others.leads_to_lost(s.local, s.remote)) any = true;
      for_each_detail<SocketMessageDetail>(
          f, OpenFileDetail::kSocketMessage,
          [&](const SocketMessageDetail& m, Blob) { on_its_way = on_its_way || m.file_count != 0; });
      bool moved = false;
      for_each_detail<MovedWatchDetail>(f, OpenFileDetail::kMovedWatch, [&](const MovedWatchDetail& w, Blob) {
        moved = moved || leads_to_lost(w.now, others);
      });
      if (moved)
        return failure(ExitCode::kUnsupported, name(),
                       "watches a connection to that host under a number that it has no more", kRestartAll);
    }
    if (any && !may_be_looked_into())
      return failure(ExitCode::kUnsupported, name(),
                     "may not be looked into (kernel.yama.ptrace_scope, or it has given up its rights)",
                     kRestartAll);
    if (any && on_its_way)
      return failure(ExitCode::kUnsupported, name(),
                     "has a descriptor waiting in a socket, which may be of a connection to that host",
                     kRestartAll);
    return {};
  }

  void set_owners(const ReplacedFiles& sockets) const {
    const DescriptorOptions options;
    DescriptorBuilder builder(meta(), options);
    for (const auto& f : meta().open_files) {
      const auto found = sockets.find(f.record.id);
      const bool wanted =
          f.record.owner != 0 || f.record.owner_signal != 0 || (f.record.open_flags & O_ASYNC) != 0;
      if (found != sockets.end() && wanted) builder.set_owner(f, found->second.get());
    }
  }

  // Over a connection of the process. An error: it may have some of them.
  Result<void> hand(int connection, const ReplacedFiles& sockets) const {
    using What = ReconnectOrder::What;
    std::vector<ReconnectOrder> watches;
    for (const auto& f : meta().open_files) {
      const int epoll = first_descriptor(meta(), f.record.id);
      if (kind_of(f) != OpenFileKind::kEpoll || epoll < 0) continue;
      for_each_detail<EpollWatchDetail>(f, OpenFileDetail::kEpollWatch, [&](const EpollWatchDetail& w, Blob) {
        for (const auto& d : meta().descriptors) {
          if (d.fd == w.fd && sockets.contains(d.open_file))
            watches.push_back({What::kWatch, w.fd, epoll, w.events, w.data});
        }
      });
    }
    bool sent = true;
    for (ReconnectOrder order : watches) {
      order.what = What::kUnwatch;
      sent = sent && send_order(connection, order, -1);
    }
    for (const auto& d : meta().descriptors) {
      const auto found = sockets.find(d.open_file);
      if (found == sockets.end()) continue;
      sent = sent && send_order(connection, {What::kClose, d.fd, -1, 0, 0}, -1);
      const auto close_on_exec = static_cast<uint32_t>(d.fd_flags & FD_CLOEXEC);
      sent = sent && send_order(connection, {What::kPlace, d.fd, -1, close_on_exec, 0}, found->second.get());
    }
    for (const ReconnectOrder& order : watches) sent = sent && send_order(connection, order, -1);
    (void)(sent && send_order(connection, {What::kEnd, -1, -1, 0, 0}, -1));
    ReconnectAnswer answer{EPIPE, -1};
    if (recv(connection, &answer, sizeof(answer), 0) != sizeof(answer)) answer = {EPIPE, -1};
    if (answer.error == 0) return {};
    return make_error(ExitCode::kSystem, answer.error, "{}: descriptor {} cannot get its new connection ({})",
                      name(), answer.fd, errno_name(answer.error));
  }

 private:
  // Its sockets are taken over for as long as other hosts arrive in them.
  bool may_be_looked_into() const {
    const int fd = meta().descriptors.empty() ? -1 : meta().descriptors.front().fd;
    return ScopedFd(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd_.get(), fd, 0))).valid();
  }
  bool leads_to_lost(int fd, const OtherHosts& others) const {
    for (const auto& d : meta().descriptors) {
      const ParsedOpenFile* f = d.fd == fd ? meta().open_file(d.open_file) : nullptr;
      if (f == nullptr) continue;
      const ImageSocket s = socket_of(*f);
      return s.is_tcp() && others.leads_to_lost(s.local, s.remote);
    }
    return false;
  }

  static bool send_order(int connection, const ReconnectOrder& order, int socket) {
    return send_descriptor(connection, &order, sizeof(order), socket) == sizeof(order);
  }

  const ManifestMember listed_;
  ImageChain image_;
  ScopedFd pidfd_;
};

class ConnectPart {
 public:
  ConnectPart(std::string directory, uint64_t cookie, OtherHosts& others)
      : directory_(std::move(directory)), cookie_(cookie), others_(others) {}

  Result<void> run() {
    CKPT_TRY(open_images());
    CKPT_TRY(listen_to_processes());
    std::vector<StandingMember> standing;
    for (const Process& p : processes_) standing.push_back(p.standing());
    CKPT_TRY(datagrams_.take(standing));
    points::at("connect.prepared");
    CKPT_TRY(others_.come_to("prepared"));
    auto made = connect_again(standing, others_, strangers_);
    if (!made.ok()) return made.error();
    size_t i = 0;
    for (const Process& p : processes_) p.set_owners((*made)[i++]);
    points::at("connect.ready");
    CKPT_TRY(others_.come_to("ready"));
    points::at("connect.decided");
    CKPT_TRY(datagrams_.connect());
    return hand_over(*made);
  }

 private:
  Result<void> open_images() {
    auto manifest = read_manifest(directory_);
    if (!manifest.ok()) return manifest.error();
    for (const ManifestMember& m : manifest->members) {
      if (m.image.empty()) continue;
      auto image = ImageChain::open(directory_ + "/" + m.image);
      if (!image.ok()) return image.error();
      ScopedFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, m.pid, 0)));
      if (!pidfd.valid())
        return failure(ExitCode::kUnsupported, fmt::format("process {} ({})", m.pid, printable(m.name)),
                       "is in another pid namespace, or has ended", kRestartAll);
      processes_.emplace_back(m, std::move(*image), std::move(pidfd));
      CKPT_TRY(processes_.back().check(others_));
    }
    return {};
  }

  Result<void> listen_to_processes() {
    listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t length = reconnect_address(cookie_, address);
    if (listener_.valid() && bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        listen(listener_.get(), 1024) == 0)
      return {};
    return make_error(ExitCode::kSystem, errno, "no socket for the processes of this host ({})",
                      errno_name(errno));
  }

  Result<void> hand_over(const std::vector<ReplacedFiles>& sockets) {
    std::vector<bool> served(processes_.size());
    for (const int64_t until = now_ns() + kHandOverNs;;) {
      size_t left = 0, i = 0;
      for (const Process& p : processes_) left += served[i++] || p.has_ended() ? 0 : 1;
      if (left == 0) return {};
      if (now_ns() > until)
        return failure(ExitCode::kTimeout, "a process of this host",
                       "did not take its new connections in time", "see its log");
      pollfd caller{listener_.get(), POLLIN, 0};
      if (poll(&caller, 1, kLookMs) <= 0) continue;
      const ScopedFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ucred who{};
      socklen_t size = sizeof(who);
      if (!peer.valid() || getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) continue;
      i = 0;
      for (const Process& p : processes_) {
        if (p.pid() == who.pid && !served[i]) {
          CKPT_TRY(p.hand(peer.get(), sockets[i]));
          served[i] = true;
          points::at("connect.handed");
        }
        ++i;
      }
    }
  }

  const std::string directory_;
  const uint64_t cookie_;
  OtherHosts& others_;
  ScopedFd listener_;
  std::list<Process> processes_;
  DatagramPeers datagrams_;
  Strangers strangers_{others_.holder_of_callers(), Strangers::Without::kOfLost};
};

}  // namespace

Result<void> connect_part(const nlohmann::json& plan, OtherHosts& others) {
  const ReachedPart part = reach_part(plan.at("part").get<std::string>());
  const uint64_t cookie = std::strtoull(plan.at("cookie").get<std::string>().c_str(), nullptr, 16);
  return ConnectPart(part.path, cookie, others).run();
}

}  // namespace ckpt::cli
