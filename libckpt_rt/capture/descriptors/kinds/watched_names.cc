#include "libckpt_rt/capture/descriptors/kinds/watched_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstring>

#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// Does the name lead to the watched file? Some file systems (overlayfs, btrfs) say another device in stat(2).
bool leads_to(const char* name, WatchedFile& watched) {
  struct stat st;
  for (const int flags : {0, AT_SYMLINK_NOFOLLOW}) {
    if (sys::call(__NR_newfstatat, AT_FDCWD, name, &st, flags) != 0 || st.st_ino != watched.inode ||
        (st.st_dev != watched.device && major(watched.device) != 0)) {
      continue;
    }
    watched.is_link = flags != 0 && S_ISLNK(st.st_mode);
    return true;
  }
  return false;
}

// Octal escapes of /proc/self/mountinfo.
size_t unescape(std::string_view text, char* out, size_t room) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (n + 1 >= room) return 0;
    uint64_t code = 0;
    if (text[i] == '\\' && i + 3 < text.size() && number_after(text.substr(i + 1, 3), "", 8, code)) {
      out[n++] = static_cast<char>(code);
      i += 3;
    } else {
      out[n++] = text[i];
    }
  }
  out[n] = '\0';
  return n;
}

struct Mount {
  uint64_t id, device;
  std::string_view point;  // with escapes
};

// "36 35 98:0 /root /mount/point options …". False: no more.
bool next_mount(std::string_view& mounts, Mount& mount) {
  std::string_view line;
  while (next_line(mounts, line)) {
    std::string_view word[5];
    for (std::string_view& w : word) {
      const size_t blank = line.find(' ');
      w = line.substr(0, blank);
      line.remove_prefix(blank == line.npos ? line.size() : blank + 1);
    }
    uint64_t major_number = 0, minor_number = 0;
    if (!number_after(word[0], "", 10, mount.id) || !number_after(word[2], "", 10, major_number) ||
        !number_after(word[2], ":", 10, minor_number))
      continue;
    mount.device = makedev(major_number, minor_number);
    mount.point = word[4];
    return true;
  }
  return false;
}

// The name that the handle leads to, seen from the mount at this directory. Its length, or 0.
size_t name_by_handle(const char* mount, WatchedFile& watched, char* name) {
  const ScopedFd place(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, mount, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0)));
  if (!place.valid()) return 0;
  const ScopedFd file(static_cast<int>(
      sys::call(__NR_open_by_handle_at, place.get(), &watched.file, O_PATH | O_CLOEXEC | O_NOFOLLOW)));
  if (!file.valid()) return 0;
  const long n = read_link(sys::gettid(), file.get(), name, kWatchedNameBytes);
  return n > 0 && name[0] == '/' && leads_to(name, watched) ? static_cast<size_t>(n) : 0;
}

// Tried on each mount of its device that begins at a directory.
size_t find_by_handle(std::string_view mounts, WatchedFile& watched, char* name) {
  if (watched.file.bytes == 0) return 0;
  Mount mount{};
  while (next_mount(mounts, mount)) {
    char point[kWatchedNameBytes];
    if (mount.device != watched.device || unescape(mount.point, point, sizeof(point)) == 0) continue;
    if (const size_t n = name_by_handle(point, watched, name); n != 0) return n;
  }
  return 0;
}

}  // namespace

bool parse_device(std::string_view line, uint64_t& device) {
  constexpr int kMinorBits = 20;  // inside the kernel
  uint64_t number = 0;
  if (!number_after(line, " sdev:", 16, number)) return false;
  device = makedev(number >> kMinorBits, number & ((1u << kMinorBits) - 1));
  return true;
}

bool parse_watched(std::string_view line, WatchedFile& watched) {
  uint64_t bytes = 0, type = 0;
  if (!number_after(line, " ino:", 16, watched.inode) || !parse_device(line, watched.device)) return false;
  watched.is_link = false;
  watched.file.bytes = 0;
  constexpr std::string_view kHandle = "f_handle:";
  const size_t at = line.find(kHandle);
  if (at == line.npos || !number_after(line, "fhandle-bytes:", 16, bytes) ||
      !number_after(line, "fhandle-type:", 16, type) || bytes > sizeof(watched.file.handle) ||
      line.size() - at - kHandle.size() < 2 * bytes) {
    return true;
  }
  for (size_t i = 0; i < bytes; ++i) {
    uint64_t byte = 0;
    if (!number_after(line.substr(at + kHandle.size() + 2 * i, 2), "", 16, byte)) return true;
    watched.file.handle[i] = static_cast<uint8_t>(byte);
  }
  watched.file.bytes = static_cast<uint32_t>(bytes);
  watched.file.type = static_cast<int32_t>(type);
  return true;
}

size_t find_watched_name(std::string_view mounts, WatchedFile& watched, char* name) {
  uint32_t at = 0;
  while (const char* known = watch_names::next(at, watched.inode)) {
    const size_t n = std::strlen(known);
    if (n >= kWatchedNameBytes || !leads_to(known, watched)) continue;
    std::memcpy(name, known, n + 1);
    return n;
  }
  return find_by_handle(mounts, watched, name);
}

size_t find_mount_point(std::string_view mounts, uint64_t id, uint64_t device, char* name) {
  Mount mount{};
  while (next_mount(mounts, mount)) {
    if ((id != 0 && mount.id != id) || (device != 0 && mount.device != device)) continue;
    const size_t n = unescape(mount.point, name, kWatchedNameBytes);
    struct statx st {};
    if (n == 0 || sys::call(__NR_statx, AT_FDCWD, name, 0L, STATX_MNT_ID, &st) != 0) continue;
    if ((st.stx_mask & STATX_MNT_ID) == 0 || st.stx_mnt_id == mount.id) return n;
  }
  return 0;
}

}  // namespace ckpt
