#include "libckpt_rt/capture/descriptors/kinds/inotify_watches.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstring>

#include "base/memory/bytes.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr size_t kNameBytes = 4096;

// "inotify wd:1 ino:2c sdev:800001 mask:2 ignored_mask:0 fhandle-bytes:8 fhandle-type:1
// f_handle:2c000000a1b2c3d4"
struct Watch {
  int32_t number;
  uint64_t inode, device;  // device: as stat(2) has it
  uint32_t mask;
  struct {  // struct file_handle
    uint32_t bytes;
    int32_t type;
    uint8_t handle[128];
  } file;
};

bool parse(std::string_view line, Watch& watch) {
  uint64_t number = 0, device = 0, mask = 0, bytes = 0, type = 0;
  if (!line.starts_with("inotify ") || !number_after(line, "wd:", 16, number) ||
      !number_after(line, " ino:", 16, watch.inode) || !number_after(line, " sdev:", 16, device) ||
      !number_after(line, " mask:", 16, mask)) {
    return false;
  }
  constexpr int kMinorBits = 20;  // inside the kernel
  watch.number = static_cast<int32_t>(number);
  watch.mask = static_cast<uint32_t>(mask);
  watch.device = makedev(device >> kMinorBits, device & ((1u << kMinorBits) - 1));
  watch.file.bytes = 0;
  constexpr std::string_view kHandle = "f_handle:";
  const size_t at = line.find(kHandle);
  if (at == line.npos || !number_after(line, "fhandle-bytes:", 16, bytes) ||
      !number_after(line, "fhandle-type:", 16, type) || bytes > sizeof(watch.file.handle) ||
      line.size() - at - kHandle.size() < 2 * bytes) {
    return true;
  }
  for (size_t i = 0; i < bytes; ++i) {
    uint64_t byte = 0;
    if (!number_after(line.substr(at + kHandle.size() + 2 * i, 2), "", 16, byte)) return true;
    watch.file.handle[i] = static_cast<uint8_t>(byte);
  }
  watch.file.bytes = static_cast<uint32_t>(bytes);
  watch.file.type = static_cast<int32_t>(type);
  return true;
}

// Does the name lead to the watched file? IN_DONT_FOLLOW is added if that is a symbolic link itself. Some
// file systems (overlayfs, btrfs) say another device in stat(2).
bool leads_to(const char* name, Watch& watch) {
  struct stat st;
  for (const int flags : {0, AT_SYMLINK_NOFOLLOW}) {
    if (sys::call(__NR_newfstatat, AT_FDCWD, name, &st, flags) != 0 || st.st_ino != watch.inode ||
        (st.st_dev != watch.device && major(watch.device) != 0)) {
      continue;
    }
    if (flags != 0 && S_ISLNK(st.st_mode)) watch.mask |= IN_DONT_FOLLOW;
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

// The name that the handle leads to, seen from the mount at this directory. Its length, or 0.
size_t name_by_handle(const char* mount, Watch& watch, char* name) {
  const ScopedFd place(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, mount, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0)));
  if (!place.valid()) return 0;
  const ScopedFd file(static_cast<int>(
      sys::call(__NR_open_by_handle_at, place.get(), &watch.file, O_PATH | O_CLOEXEC | O_NOFOLLOW)));
  if (!file.valid()) return 0;
  const long n = read_link(sys::gettid(), file.get(), name, kNameBytes);
  return n > 0 && name[0] == '/' && leads_to(name, watch) ? static_cast<size_t>(n) : 0;
}

// Tried on each mount of its device that begins at a directory. mounts: /proc/self/mountinfo.
size_t find_by_handle(std::string_view mounts, Watch& watch, char* name) {
  if (watch.file.bytes == 0) return 0;
  std::string_view line;
  while (next_line(mounts, line)) {
    // "36 35 98:0 /root /mount/point options …"
    std::string_view word[5];
    for (std::string_view& w : word) {
      const size_t blank = line.find(' ');
      w = line.substr(0, blank);
      line.remove_prefix(blank == line.npos ? line.size() : blank + 1);
    }
    uint64_t major_number = 0, minor_number = 0;
    if (!number_after(word[2], "", 10, major_number) || !number_after(word[2], ":", 10, minor_number) ||
        makedev(major_number, minor_number) != watch.device) {
      continue;
    }
    char mount[kNameBytes];
    if (unescape(word[4], mount, sizeof(mount)) == 0) continue;
    if (const size_t n = name_by_handle(mount, watch, name); n != 0) return n;
  }
  return 0;
}

size_t find_name(std::string_view mounts, Watch& watch, char* name) {
  uint32_t at = 0;
  while (const char* known = watch_names::next(at, watch.inode)) {
    const size_t n = std::strlen(known);
    if (n >= kNameBytes || !leads_to(known, watch)) continue;
    std::memcpy(name, known, n + 1);
    return n;
  }
  return find_by_handle(mounts, watch, name);
}

}  // namespace

Result<void> InotifyWatches::keep(CapturedDescriptor& d, std::string_view info) {
  d.watches = {};
  if (!info.empty()) {
    char* copy = static_cast<char*>(files_.arena().allocate(info.size(), 1));
    if (copy == nullptr) return arena_full(files_.arena());
    std::memcpy(copy, info.data(), info.size());
    d.watches = {copy, info.size()};
  }
  d.flags &= ~static_cast<uint32_t>(kOpenFileEventsLost);
  if (!access_.may_borrow()) return {};
  const ScopedFd fd(access_.borrow(d));
  int bytes = 0;
  if (fd.valid() && sys::call(__NR_ioctl, fd.get(), FIONREAD, &bytes) == 0 && bytes != 0) {
    d.flags |= kOpenFileEventsLost;
    notes_.say_passing();  // the program is about to read them, as a rule
  }
  return {};
}

void InotifyWatches::name_all() {
  std::string_view mounts;
  for (CapturedDescriptor& d : files_.entries()) {
    if (d.shares || d.kind != OpenFileKind::kInotify) continue;
    if ((d.flags & kOpenFileEventsLost) != 0)
      (void)notes_.add(
          kChanged,
          "descriptor {} (inotify): events wait in it, which cannot be saved: they are lost after a restart, "
          "which the program is told (IN_Q_OVERFLOW)",
          d.fd);
    if (mounts.empty() && !d.watches.empty()) mounts = read_mounts();
    ByteWriter out(files_.arena());
    std::string_view text = d.watches, line;
    while (next_line(text, line)) {
      Watch watch{};
      if (!parse(line, watch)) continue;
      char name[kNameBytes];
      const size_t length = find_name(mounts, watch, name);
      if (length == 0) {
        (void)notes_.add(kChanged,
                         "descriptor {} (inotify): watch {} is on a file whose name is not known (inode {}): "
                         "after a restart the program is told that the file is gone",
                         d.fd, watch.number, watch.inode);
      }
      const uint32_t padded = static_cast<uint32_t>((length + 7) & ~size_t{7});
      out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kInotifyWatch),
                           static_cast<uint32_t>(sizeof(InotifyWatchDetail)) + padded});
      out.put(InotifyWatchDetail{watch.number, watch.mask, static_cast<uint32_t>(length), 0});
      out.raw(name, length);
      static constexpr char kZeros[8] = {};
      out.raw(kZeros, padded - length);
    }
    if (!out.ok()) continue;  // no memory: serialize() finds none either
    d.details = out.span().data();
    d.details_len = static_cast<uint32_t>(out.size());
  }
}

// /proc/self/mountinfo, in the arena; empty if it cannot be had.
std::string_view InotifyWatches::read_mounts() const {
  const ScopedFd file(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC, 0)));
  constexpr size_t kRoom = 1 << 20;
  char* text = file.valid() ? static_cast<char*>(files_.arena().allocate(kRoom, 1)) : nullptr;
  size_t have = 0;
  while (text != nullptr && have < kRoom) {
    const long n = sys::call(__NR_read, file.get(), text + have, kRoom - have);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
  }
  return {text, have};
}

}  // namespace ckpt
