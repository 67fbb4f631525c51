// Tables of sockets that interposed calls fill: open addressing, a socket's cookie (SO_COOKIE) as the key.
//
// Owner:     capture/sockets. Header only. Callers: threads of the program, the agent.
// Never:     locks, allocates, gives a place back: one is taken for good.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/sys.h"

namespace ckpt {

// 0: it is no socket.
inline uint64_t cookie_of_socket(int fd) {
  uint64_t cookie = 0;
  uint32_t length = sizeof(cookie);
  return sys::call(__NR_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

// The place of this cookie; take: one is taken where there is none. Place::cookie: atomic, 0 if free.
// nullptr: there is none, or the table is full.
template <typename Place, size_t kMost>
Place* find_by_cookie(Place (&places)[kMost], uint64_t cookie, bool take) {
  for (size_t i = 0, at = cookie % kMost; i < kMost; ++i, at = (at + 1) % kMost) {
    // relaxed: what else is in a place is atomic by itself.
    uint64_t found = places[at].cookie.load(std::memory_order_relaxed);
    if (found == 0 && !take) return nullptr;
    if (found == cookie ||
        (found == 0 && (places[at].cookie.compare_exchange_strong(found, cookie, std::memory_order_relaxed) ||
                        found == cookie)))
      return &places[at];
  }
  return nullptr;
}

}  // namespace ckpt
