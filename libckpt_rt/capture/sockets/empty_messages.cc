#include "libckpt_rt/capture/sockets/empty_messages.h"

#include <algorithm>
#include <cstring>

#include "base/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::empty_messages {

namespace {

constexpr uint32_t kEmpty = 0;  // digest of a message without a byte

struct Empty {
  SocketMessageDetail detail;
  int64_t seen_ns;
  std::byte address[sizeof(sockaddr_storage)];
};

struct Known {
  uint64_t cookie;  // 0: free
  uint64_t look;    // the last one that has touched it
  uint32_t count, empty_count;
  uint32_t digests[kMostMessages];
  Empty empty[kMostEmpty];
};
CKPT_LARGE_TABLE constinit Known known[kMostSockets]{};
constinit uint64_t look = 0;
constinit bool any = false;

uint64_t cookie_of(int socket) {
  uint64_t cookie = 0;
  socklen_t length = sizeof(cookie);
  return sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

// cookie 0: a free place.
Known* find(uint64_t cookie) {
  const auto found = std::find_if(std::begin(known), std::end(known),
                                  [cookie](const Known& k) { return k.cookie == cookie; });
  return found == std::end(known) ? nullptr : found;
}

Known* find_socket(int socket) {
  const uint64_t cookie = any ? cookie_of(socket) : 0;
  return cookie == 0 ? nullptr : find(cookie);
}

// FNV-1a of the address and the first bytes.
uint32_t digest_of(const SocketMessage& m) {
  constexpr uint64_t kMostBytes = 1024;
  if (m.detail.length == 0) return kEmpty;
  uint32_t digest = 2166136261u ^ static_cast<uint32_t>(m.detail.length);
  const auto add = [&](std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) digest = (digest ^ static_cast<uint32_t>(b)) * 16777619u;
  };
  add({m.address, m.detail.address_len});
  add({m.bytes, std::min(m.detail.length, kMostBytes)});
  return digest == kEmpty ? 1 : digest;
}

uint32_t count_empty(const Known& k, uint32_t before) {
  return static_cast<uint32_t>(std::count(k.digests, k.digests + before, kEmpty));
}

bool has_sender_of(const Empty& e, const SocketMessage& m) {
  return e.detail.address_len == m.detail.address_len &&
         std::memcmp(e.address, m.address, e.detail.address_len) == 0;
}

// Whether the messages that were seen now begin with those that were there from `first` on. This look could
// not see messages without a byte, but for the first of all.
bool is_rest(const Known& k, uint32_t first, std::span<const SocketMessage> seen) {
  size_t at = 0;
  for (uint32_t i = first; i < k.count; ++i) {
    const bool empty = k.digests[i] == kEmpty;
    if (empty && i != first) continue;
    if (at == seen.size() || digest_of(seen[at]) != k.digests[i]) return false;
    if (empty && !has_sender_of(k.empty[count_empty(k, i)], seen[at])) return false;
    ++at;
  }
  return true;
}

}  // namespace

void begin_look() { ++look; }

void touch(int socket) {
  if (Known* const k = find_socket(socket)) k->look = look;
}

uint32_t find_unseen(int socket, std::span<const SocketMessage> seen, std::span<Unseen, kMostEmpty> unseen) {
  const Known* const k = find_socket(socket);
  if (k == nullptr) return 0;
  uint32_t first = 0;
  while (first < k->count && !is_rest(*k, first, seen)) ++first;
  uint32_t at = 0, found = 0;
  uint32_t empty = count_empty(*k, first);
  for (uint32_t i = first; i < k->count; ++i) {
    if (k->digests[i] != kEmpty) {
      ++at;
      continue;
    }
    const Empty& e = k->empty[empty++];
    if (i == first)
      ++at;
    else
      unseen[found++] = {at, e.detail, e.address, e.seen_ns};
  }
  return found;
}

bool remember(int socket, std::span<const SocketMessage> all) {
  const auto empty_count =
      std::count_if(all.begin(), all.end(), [](const SocketMessage& m) { return m.detail.length == 0; });
  if (empty_count == 0 && !any) return true;
  const uint64_t cookie = cookie_of(socket);
  Known* k = cookie == 0 ? nullptr : find(cookie);
  if (empty_count == 0) {
    if (k != nullptr) k->cookie = 0;
    return true;
  }
  if (k == nullptr) k = find(0);
  if (k == nullptr) return false;
  k->cookie = 0;
  if (cookie == 0 || all.size() > kMostMessages || empty_count > kMostEmpty) return false;
  k->count = k->empty_count = 0;
  for (const SocketMessage& m : all) {
    k->digests[k->count++] = digest_of(m);
    if (m.detail.length != 0) continue;
    Empty& e = k->empty[k->empty_count++];
    e.detail = m.detail;
    e.seen_ns = m.seen_ns;
    e.detail.address_len = std::min<uint32_t>(m.detail.address_len, sizeof(e.address));
    std::memcpy(e.address, m.address, e.detail.address_len);
  }
  k->look = look;
  k->cookie = cookie;
  return any = true;
}

void end_look() {
  if (!any) return;
  for (Known& k : known) {
    if (k.look != look) k.cookie = 0;
  }
}

void forget() {
  for (Known& k : known) k.cookie = 0;
  any = false;
}

}  // namespace ckpt::empty_messages
