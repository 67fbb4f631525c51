#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

// Where the file of a Unix socket is. The kernel tells the name that the socket was bound to, and the file's
// inode number. The name may be relative to a directory that the program has left, and the file may have been
// renamed since.

namespace ckpt {
namespace {

constexpr size_t kPathBytes = 4096;
constexpr int kMostEntries = 4096;  // of a directory that is searched: threads stand

struct Entry {
  uint64_t inode;
  int64_t next;
  uint16_t length;
  uint8_t type;
  char name[1];
};

bool is_file_of(const char* path, uint32_t inode, struct stat& st) {
  return sys::call(__NR_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode) &&
         inode != 0 && static_cast<uint32_t>(st.st_ino) == inode;
}

// path: the name that it had, whose directory is searched; then the one that it has.
bool find_renamed(char* path, uint32_t inode, struct stat& st) {
  char* slash = std::strrchr(path, '/');
  if (slash == nullptr) return false;
  char* const name = slash + 1;
  *name = '\0';
  const ScopedFd directory(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)));
  alignas(8) char buffer[4096];
  for (int left = kMostEntries; directory.valid() && left > 0;) {
    const long n = sys::call(__NR_getdents64, directory.get(), buffer, sizeof(buffer));
    if (n <= 0) return false;
    for (long at = 0; at < n; --left) {
      auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->length;
      if (static_cast<uint32_t>(entry->inode) != inode) continue;
      const size_t length = std::strlen(entry->name);
      if (static_cast<size_t>(name - path) + length >= kPathBytes) continue;
      std::memcpy(name, entry->name, length + 1);
      if (is_file_of(path, inode, st)) return true;
    }
  }
  return false;
}

const char* copy_of(const char* text, size_t length, Arena& arena) {
  char* copy = static_cast<char*>(arena.allocate(length + 1, 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text, length);
  copy[length] = '\0';
  return copy;
}

// Where a file is whose name says it no more: the directory of a relative name, and what it is called by now.
struct Place {
  char path[kPathBytes];
  size_t directory = 0;  // length of the directory that a relative name is of, at the begin of `bound`
  char bound[kPathBytes];
  bool is_renamed = false;
};

// bound: an absolute name by which a socket of this name was bound.
bool is_at(const char* name, const char* bound, uint32_t inode, Place& place, struct stat& st) {
  const size_t n = std::strlen(bound), length = std::strlen(name);
  if (inode == 0 || n >= kPathBytes) return false;
  place.directory = 0;
  if (name[0] != '/') {
    if (n <= length + 1 || std::strcmp(bound + n - length, name) != 0 || bound[n - length - 1] != '/')
      return false;
    place.directory = n - length - 1;
  }
  std::memcpy(place.bound, bound, n + 1);
  std::memcpy(place.path, bound, n + 1);
  place.is_renamed = place.directory == 0 || !is_file_of(bound, inode, st);
  return !place.is_renamed || find_renamed(place.path, inode, st);
}

bool find(const char* name, uint32_t inode, Place& place, struct stat& st) {
  if (name[0] == '/') return is_at(name, name, inode, place, st);
  uint32_t at = 0;
  while (const char* bound = watch_names::next(at, inode)) {
    if (is_at(name, bound, inode, place, st)) return true;
  }
  // A restart has bound it anew: the file is another one.
  at = 0;
  while (const char* bound = watch_names::next_of_all(at)) {
    if (is_at(name, bound, inode, place, st)) return true;
  }
  return false;
}

}  // namespace

bool look_at_file(SocketState& s, uint32_t inode, Arena& arena) {
  auto& address = reinterpret_cast<const sockaddr_un&>(s.address);
  if (s.detail.address_len <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0') return true;
  char name[sizeof(sockaddr_un) + 1] = {};
  std::memcpy(name, address.sun_path, s.detail.address_len - offsetof(sockaddr_un, sun_path));
  struct stat st, other;
  const long r = sys::call(__NR_newfstatat, AT_FDCWD, name, &st, AT_SYMLINK_NOFOLLOW);
  const auto note = [&](const struct stat& file) { s.file = {file.st_mode, file.st_uid, file.st_gid, 0, 0}; };
  if (is_file_of(name, inode, other)) {
    note(other);
    return true;
  }
  Place place;
  if (find(name, inode, place, other)) {
    note(other);
    const size_t now = place.is_renamed ? std::strlen(place.path) : 0;
    s.directory = copy_of(place.bound, place.directory, arena);
    s.now_at = copy_of(place.path, now, arena);
    s.file.directory_len = static_cast<uint16_t>(place.directory);
    s.file.now_len = static_cast<uint16_t>(now);
    return s.directory != nullptr && s.now_at != nullptr;
  }
  // Nothing is known but the name (a file system may number files in its own way).
  if (r == -ENOENT) s.link.flags |= kLinkFileGone;
  if (r == 0 && S_ISSOCK(st.st_mode)) note(st);
  return true;
}

}  // namespace ckpt
