#include "cli/back/descriptors/datagram_peers.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>

#include "restart/channels/hosts_plan.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

const ParsedOpenFile* same_object(const ImageMeta& meta, uint64_t object) {
  for (const auto& f : meta.open_files) {
    if (f.record.object == object && first_descriptor(meta, f.record.id) >= 0) return &f;
  }
  return nullptr;
}

}  // namespace

bool is_datagram_peer(const StandingMember& member, const ParsedOpenFile& file, const ImageSocket& socket) {
  return socket.detail.type == SOCK_DGRAM && first_descriptor(*member.then, file.record.id) >= 0 &&
         !is_corked(file);
}

Result<void> DatagramPeers::take(const std::vector<StandingMember>& members) {
  std::set<uint64_t> known;  // several processes may have one
  for (const StandingMember& m : members) {
    for (const auto& f : m.then->open_files) {
      const ImageSocket s = socket_of(f);
      if (!leads_elsewhere_now(s) || !is_datagram_peer(m, f, s)) continue;
      const ParsedOpenFile* now = same_object(*m.now, f.record.object);
      if (now == nullptr || !known.insert(f.record.object).second) continue;
      const std::string name = fmt::format("{} of process {}", f.path, m.then->process.record.pid);
      const int fd = first_descriptor(*m.now, now->record.id);
      ScopedFd ours(static_cast<int>(syscall(SYS_pidfd_getfd, m.pidfd, fd, 0)));
      if (!ours.valid())
        return make_error(ExitCode::kPermission, errno, "{}: cannot be looked at ({})", name,
                          errno_name(errno));
      SocketName to = s.remote;
      hosts_plan()->translate_other(to, {});
      peers_.push_back({name, std::move(ours), to});
    }
  }
  return {};
}

Result<void> DatagramPeers::connect() const {
  for (const Peer& p : peers_) {
    // That the host which is gone could not be reached is not said of the one that is there.
    int error = 0;
    socklen_t length = sizeof(error);
    (void)getsockopt(p.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (::connect(p.socket.get(), reinterpret_cast<const sockaddr*>(&p.to.address), p.to.length) != 0)
      return make_error(ExitCode::kSystem, errno,
                        "{}: cannot be connected to the host that has its peer now ({})", p.name,
                        errno_name(errno));
  }
  return {};
}

}  // namespace ckpt::cli
