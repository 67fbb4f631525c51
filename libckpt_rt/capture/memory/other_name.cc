#include "libckpt_rt/capture/memory/other_name.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "base/files/directory_scan.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint32_t kMostEntries = 100'000;  // of all directories that are read

constexpr unsigned char kDirectory = 4, kUnknown = 0;  // DT_DIR, DT_UNKNOWN

struct Search {
  uint64_t device, inode;
  std::span<char> to;
  uint32_t left = kMostEntries;
};

// The directory's name is in `to`, `length` bytes. Its entry that leads to the file is added to it. below:
// looked for in its directories, not in itself.
size_t search(Search& s, size_t length, bool below) {
  s.to[length] = '\0';
  ScopedFd directory(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, length == 0 ? "/" : s.to.data(),
                                                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0)));
  if (!directory.valid()) return 0;
  alignas(8) char buffer[8192];
  for (;;) {
    const long n = sys::call(__NR_getdents64, directory.get(), buffer, sizeof(buffer));
    if (n <= 0) return 0;
    for (long at = 0; at < n;) {
      auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      at += entry->bytes;
      const std::string_view name(entry->name);
      if (s.left == 0 || name == "." || name == "..") continue;
      --s.left;
      const bool wanted =
          below ? entry->type == kDirectory : entry->inode == s.inode || entry->type == kUnknown;
      if (!wanted || length + 1 + name.size() + 1 > s.to.size()) continue;
      s.to[length] = '/';
      std::memcpy(&s.to[length + 1], name.data(), name.size());
      const size_t whole = length + 1 + name.size();
      s.to[whole] = '\0';
      if (below) {
        if (const size_t found = search(s, whole, false); found != 0) return found;
      } else if (is_name_of(s.to.data(), s.device, s.inode)) {
        return whole;
      }
    }
    if (s.left == 0) return 0;
  }
}

}  // namespace

bool is_name_of(const char* path, uint64_t device, uint64_t inode) {
  struct stat st;
  return sys::call(__NR_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == device &&
         st.st_ino == inode;
}

bool leads_to_inode(const char* path, uint64_t inode) {
  struct stat st {};
  return !sys::failed(sys::call(__NR_newfstatat, AT_FDCWD, path, &st, 0L)) && st.st_ino == inode;
}

size_t find_name_beside(std::string_view removed, uint64_t device, uint64_t inode, std::span<char> to,
                        uint32_t* left) {
  const size_t slash = removed.rfind('/');
  if (!removed.starts_with('/') || slash + 2 > to.size()) return 0;
  std::memcpy(to.data(), removed.data(), slash);
  Search s{device, inode, to, *left};
  const size_t found = search(s, slash, false);
  *left = s.left;
  return found;
}

size_t find_other_name(std::string_view removed, uint64_t device, uint64_t inode, std::span<char> to) {
  uint32_t left = kMostEntries;
  if (const size_t found = find_name_beside(removed, device, inode, to, &left); found != 0) return found;
  const size_t slash = removed.rfind('/');
  if (slash == 0 || slash == removed.npos || slash + 2 > to.size()) return 0;
  const size_t above = removed.rfind('/', slash - 1);
  Search s{device, inode, to, left};
  if (const size_t found = search(s, above, false); found != 0) return found;
  return search(s, above, true);
}

}  // namespace ckpt
