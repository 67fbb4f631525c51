// What is asked of a keeper, and where it listens (docs/diskless.md).
//
// A keeper holds images in memory, in a directory that has no path. A client asks over a socket and gets the
// directory as a descriptor. So CKPT_DIR and all else name such a directory by the path of the socket:
// /tmp/ckpt-keeper-UID/NAME.keeper; an image in it is NAME.keeper/FILE. Users write keeper:NAME.
//
// Owner: base. Callers: the agent in a program, ordinary programs, the keeper. Nothing here allocates.
// One SOCK_SEQPACKET packet each way: KeeperRequest, KeeperAnswer. Both sides check who the other is
// (SO_PEERCRED).
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace ckpt {

inline constexpr std::string_view kKeeperScheme = "keeper:", kKeeperSuffix = ".keeper";
inline constexpr std::string_view kKeeperDirectory = "/tmp/ckpt-keeper-";  // and the user's number
inline constexpr std::string_view kDefaultKeeper = "main";
inline constexpr size_t kMostKeeperName = 40;

inline constexpr uint64_t kKeeperMagic = 0x3152504545504b43;  // "CKPEEPR1"

enum class KeeperOperation : uint32_t {
  kOpen = 1,  // the answer brings the directory of images
  kStatus,    // how much is held
  kStop,      // the keeper ends, and all that it holds is gone
};

struct KeeperRequest {
  uint64_t magic = kKeeperMagic;
  uint32_t operation = 0;  // KeeperOperation
  uint32_t reserved = 0;
};

struct KeeperAnswer {
  uint64_t magic = kKeeperMagic;
  int32_t pid = 0;
  uint32_t huge_pages = 0;     // 1: the memory comes in huge pages where that fits
  uint64_t bound_bytes = 0;    // of memory, --memory
  uint64_t used_bytes = 0;     // of it
  uint64_t touched_bytes = 0;  // beforehand
  int64_t since_ns = 0;        // CLOCK_REALTIME
};

// Letters, digits, '-' and '_'; not empty.
inline bool is_keeper_name(std::string_view name) {
  if (name.empty() || name.size() > kMostKeeperName) return false;
  for (const char c : name) {
    const bool fine =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    if (!fine) return false;
  }
  return true;
}

struct KeeperPath {
  char text[108] = {};  // as sockaddr_un has it
};

// Where the keeper of that name listens; "" is the default one.
inline KeeperPath keeper_path(uint32_t user, std::string_view name) {
  KeeperPath path;
  *fmt::format_to_n(path.text, sizeof(path.text) - 1, "{}{}/{}{}", kKeeperDirectory, user,
                    name.empty() ? kDefaultKeeper : name, kKeeperSuffix)
       .out = '\0';
  return path;
}

// How much of a path names a keeper's socket; 0: it names something else.
inline size_t keeper_part(std::string_view path) {
  if (!path.starts_with(kKeeperDirectory)) return 0;
  size_t at = kKeeperDirectory.size();
  const size_t user = at;
  while (at < path.size() && path[at] >= '0' && path[at] <= '9') ++at;
  if (at == user || at == path.size() || path[at] != '/') return 0;
  const size_t name = ++at;
  at = path.find('/', name);
  if (at == std::string_view::npos) at = path.size();
  const std::string_view last = path.substr(name, at - name);
  if (!last.ends_with(kKeeperSuffix)) return 0;
  return is_keeper_name(last.substr(0, last.size() - kKeeperSuffix.size())) && at < sizeof(KeeperPath::text)
             ? at
             : 0;
}

}  // namespace ckpt
