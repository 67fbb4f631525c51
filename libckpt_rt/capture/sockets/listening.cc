#include "libckpt_rt/capture/sockets/listening.h"

#include <netinet/tcp.h>
#include <sys/stat.h>

#include <algorithm>

#include "libckpt_rt/capture/sockets/socket_diag.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

bool ListeningSockets::open(Reserve reserve) {
  constexpr size_t kRoom = 64 << 20;  // of address space: for some 500,000 Unix sockets
  if (!reserve(of_look_, kRoom) || !reserve(of_memory_, 1 << 20)) return false;
  remembered_ = ArenaVector<uint64_t>(of_memory_);
  return true;
}

bool ListeningSockets::is_own(uint32_t inode) const {
  return std::binary_search(own_.begin(), own_.end(), inode);
}

bool ListeningSockets::look(std::span<const CapturedDescriptor> descriptors) {
  of_look_.reset();
  own_ = ArenaVector<uint32_t>(of_look_);
  unread_ = ArenaVector<uint64_t>(of_look_);
  any_ = false;
  for (const CapturedDescriptor& d : descriptors) {
    if (S_ISSOCK(d.now.mode) && !own_.push_back(static_cast<uint32_t>(d.now.inode))) return false;
  }
  if (own_.empty()) return true;
  std::sort(own_.begin(), own_.end());
  SocketDiag diag(of_look_);
  const bool knows_tcp = look_at_tcp(diag);
  return look_at_unix(diag) || knows_tcp;
}

bool ListeningSockets::look_at_tcp(SocketDiag& diag) {
  ArenaVector<SocketDiag::Listener> listening(of_look_);
  if (!diag.list_listening(listening)) return false;
  for (const SocketDiag::Listener& l : listening) {
    if (!is_own(l.inode)) continue;
    any_ = true;
    if (l.waiting != 0 && !diag.list_unread(l.port, unread_)) return false;
  }
  return true;
}

bool ListeningSockets::look_at_unix(SocketDiag& diag) {
  if (!diag.read_unix_listening()) return false;
  bool waits = false;
  for (const UnixSocketFacts& u : diag.all_unix()) {
    any_ = any_ || is_own(u.inode);
    waits = waits || (is_own(u.inode) && u.waiting != 0);
  }
  if (!waits) return true;
  // Now that it is worth it: what clients have sent.
  if (!diag.read_unix()) return false;
  for (const UnixSocketFacts& u : diag.all_unix()) {
    if (u.state != TCP_LISTEN || !is_own(u.inode)) continue;
    for (uint32_t i = 0; i < u.icon_count; ++i) {
      const UnixSocketFacts* const client = u.icons[i] == 0 ? nullptr : diag.find_unix(u.icons[i]);
      // Of a socket that does not listen: bytes that it has sent and nobody has read. One that is gone has no
      // number.
      const bool unread = u.icons[i] == 0 || (client != nullptr && client->backlog != 0);
      if (unread && !unread_.push_back(uint64_t{u.inode} << 32 | u.icons[i])) return false;
    }
  }
  return true;
}

void ListeningSockets::remember_unread() {
  remembered_.clear();
  for (const uint64_t one : unread_) {
    if (!remembered_.push_back(one)) return;  // more than a queue can have
  }
}

bool ListeningSockets::any_remembered() const {
  return std::any_of(unread_.begin(), unread_.end(), [&](uint64_t one) {
    return std::find(remembered_.begin(), remembered_.end(), one) != remembered_.end();
  });
}

}  // namespace ckpt
