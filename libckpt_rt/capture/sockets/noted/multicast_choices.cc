#include "libckpt_rt/capture/sockets/noted/multicast_choices.h"

#include <sys/socket.h>

#include <atomic>
#include <cstring>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "image/format/records/descriptor_records.h"
#include "libckpt_rt/capture/sockets/noted/by_cookie.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::multicast_choices {

namespace {

struct Place {
  std::atomic<uint64_t> cookie;  // 0: free; taken for good
  std::atomic<uint64_t> chosen;  // number of the interface, and the address given with it; 0: none
  int fd;                        // at the last checkpoint
};
CKPT_LARGE_TABLE constinit Place places[kMost]{}, old[kMost]{};  // old: of find_again()
constinit std::atomic<bool> any{false}, full{false};

Place* find(uint64_t cookie, bool take) { return find_by_cookie(places, cookie, take); }

}  // namespace

Note before(int fd, const ip_mreqn& chosen) {
  const bool nothing = chosen.imr_ifindex == 0;
  // Most programs give an address, and none of their sockets is in the table.
  if (nothing && !any.load(std::memory_order_relaxed)) return {};
  const uint64_t cookie = cookie_of_socket(fd);
  if (cookie == 0) return {};
  any.store(true, std::memory_order_relaxed);
  Place* place = find(cookie, !nothing);
  if (place == nullptr) {
    if (!nothing) full.store(true, std::memory_order_relaxed);
    return {};
  }
  const uint64_t word =
      nothing ? 0 : uint64_t{static_cast<uint32_t>(chosen.imr_ifindex)} << 32 | chosen.imr_address.s_addr;
  return {static_cast<uint32_t>(place - places) + 1, place->chosen.exchange(word, std::memory_order_relaxed)};
}

void after(const Note& note, bool succeeded) {
  if (note.place == 0 || succeeded) return;
  places[note.place - 1].chosen.store(note.before, std::memory_order_relaxed);
}

void begin() {
  if (!any.load(std::memory_order_relaxed)) return;
  for (Place& place : places) place.fd = -1;
}

bool put(ByteWriter& out, int socket, int fd) {
  if (!any.load(std::memory_order_relaxed)) return true;
  const uint64_t cookie = cookie_of_socket(socket);
  Place* place = cookie != 0 ? find(cookie, false) : nullptr;
  if (place == nullptr) return !full.load(std::memory_order_relaxed);
  place->fd = fd;
  const uint64_t word = place->chosen.load(std::memory_order_relaxed);
  if (word == 0) return true;
  ip_mreqn chosen{};
  chosen.imr_ifindex = static_cast<int>(word >> 32);
  chosen.imr_address.s_addr = static_cast<uint32_t>(word);
  SocketOptionDetail option{IPPROTO_IP, IP_MULTICAST_IF, sizeof(chosen), 0, {}};
  static_assert(sizeof(chosen) <= sizeof(option.value));
  std::memcpy(option.value, &chosen, sizeof(chosen));
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketOption), sizeof(option)});
  out.put(option);
  return true;
}

// Each socket has another cookie now. Sockets that were not among the descriptors are gone.
void find_again() {
  if (!any.load(std::memory_order_relaxed)) return;
  for (uint32_t i = 0; i < kMost; ++i) {
    for (auto member : {&Place::cookie, &Place::chosen})
      (old[i].*member)
          .store((places[i].*member).exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
    old[i].fd = places[i].fd;
  }
  for (const Place& place : old) {
    const uint64_t word = place.chosen.load(std::memory_order_relaxed);
    const uint64_t cookie = word != 0 && place.fd >= 0 ? cookie_of_socket(place.fd) : 0;
    Place* now = cookie != 0 ? find(cookie, true) : nullptr;
    if (now != nullptr) now->chosen.store(word, std::memory_order_relaxed);
  }
}

}  // namespace ckpt::multicast_choices
