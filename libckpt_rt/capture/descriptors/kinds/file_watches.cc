#include "libckpt_rt/capture/descriptors/kinds/file_watches.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#include <cstring>

#include "base/memory/bytes.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/noted/fanotify_groups.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// All stand in a stop, the listener too. A file that the checkpoint opens would wait for it for ever.
Error asks_for_permission(int fd) {
  return make_error(ExitCode::kUnsupported, 0,
                    "descriptor {} is a group of fanotify that others ask for permission (FAN_CLASS_CONTENT, "
                    "FAN_CLASS_PRE_CONTENT): it cannot answer while the program stands; close it first",
                    fd);
}

}  // namespace

Result<void> refuse_permission_groups(Arena& arena, int tid) {
  ArenaVector<int> fds(arena);
  if (list_descriptors(tid, fds) == -ENOMEM) return arena_full(arena);
  for (const int fd : fds) {
    char link[64], text[4096];
    const long n = read_link(tid, fd, link, sizeof(link));
    if (n <= 0 || std::string_view(link, static_cast<size_t>(n)) != "anon_inode:[fanotify]") continue;
    FdInfo info;
    if (read_fdinfo(tid, fd, text, arena, info) >= 0 && gives_permissions(info.text))
      return asks_for_permission(fd);
  }
  return {};
}

Result<void> refuse_new_permissions(Arena& arena, int tid, uint32_t before) {
  return fanotify_groups::may_permit_since(before) ? refuse_permission_groups(arena, tid) : Result<void>();
}

void FileWatches::begin() { permissions_ = fanotify_groups::permissions(); }

Result<void> FileWatches::check_stopped(int tid) const {
  return refuse_new_permissions(files_.arena(), tid, permissions_);
}

void put_padded_path(const char* path, size_t length, ByteWriter& out) {
  static constexpr char kZeros[8] = {};
  out.raw(path, length);
  out.raw(kZeros, padded_path(length) - length);
}

Result<void> FileWatches::keep(CapturedDescriptor& d, std::string_view info) {
  if (d.kind == kFanotify && gives_permissions(info)) return asks_for_permission(d.fd);
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

void FileWatches::name_all() {
  std::string_view mounts;
  for (CapturedDescriptor& d : files_.entries()) {
    if (d.shares || !watches_files(d.kind)) continue;
    const bool is_inotify = d.kind == OpenFileKind::kInotify;
    if ((d.flags & kOpenFileEventsLost) != 0) {
      (void)notes_.add(kChanged,
                       "descriptor {} ({}): events wait in it, which cannot be saved: they are lost after a "
                       "restart, which the program is {}",
                       d.fd, is_inotify ? "inotify" : "fanotify",
                       is_inotify ? "told (IN_Q_OVERFLOW)" : "not told");
    }
    if (mounts.empty() && !d.watches.empty()) mounts = read_mounts();
    ByteWriter out(files_.arena());
    (is_inotify ? put_inotify_watches : put_fanotify_marks)(d, mounts, notes_, out);
    if (!out.ok()) continue;  // no memory: serialize() finds none either
    d.details = out.span().data();
    d.details_len = static_cast<uint32_t>(out.size());
  }
}

// /proc/self/mountinfo, in the arena; empty if it cannot be had.
std::string_view FileWatches::read_mounts() const {
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
