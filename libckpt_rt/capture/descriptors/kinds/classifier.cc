#include "libckpt_rt/capture/descriptors/kinds/classifier.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <cstring>

#include "base/memory/bytes.h"
#include "base/raii_fd.h"
#include "image/format/records/fanotify_records.h"
#include "image/format/records/terminal_records.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/capture/descriptors/kinds/file_systems.h"
#include "libckpt_rt/capture/descriptors/kinds/terminal_holders.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

bool is_terminal(uint64_t rdev, std::string_view path) {
  const unsigned number = major(rdev);
  // Pseudo terminals, virtual consoles and serial lines, /dev/tty and /dev/console.
  if ((number >= 136 && number <= 143) || number == 4) return true;
  if (number == 5) return minor(rdev) != 2;  // 5:2 is /dev/ptmx, the other side of a terminal
  return path.starts_with("/dev/tty") || path.starts_with("/dev/hvc");
}

// Character devices without state, and block devices, whose state is the offset.
bool can_be_opened_again(uint32_t mode, uint64_t rdev) {
  if ((mode & S_IFMT) == S_IFBLK) return true;
  if (major(rdev) != 1) return false;
  switch (minor(rdev)) {
    case 3:   // null
    case 5:   // zero
    case 7:   // full
    case 8:   // random
    case 9:   // urandom
    case 11:  // kmsg
      return true;
    default:
      return false;
  }
}

// Where every system has a character device, in case this one's name was removed; nullptr: nowhere.
const char* usual_name(uint32_t mode, uint64_t rdev) {
  if ((mode & S_IFMT) != S_IFCHR || major(rdev) != 1) return nullptr;
  switch (minor(rdev)) {
    case 3:
      return "/dev/null";
    case 5:
      return "/dev/zero";
    case 7:
      return "/dev/full";
    case 8:
      return "/dev/random";
    case 9:
      return "/dev/urandom";
    case 11:
      return "/dev/kmsg";
    default:
      return nullptr;
  }
}

OpenFileKind anonymous_kind(std::string_view link) {
  if (link == "anon_inode:[eventfd]") return OpenFileKind::kEventFd;
  if (link == "anon_inode:[eventpoll]") return OpenFileKind::kEpoll;
  if (link == "anon_inode:[timerfd]") return OpenFileKind::kTimerFd;
  if (link == "anon_inode:[signalfd]") return OpenFileKind::kSignalFd;
  if (link == "anon_inode:[pidfd]") return OpenFileKind::kPidFd;
  if (link == "anon_inode:inotify" || link == "anon_inode:[inotify]") return OpenFileKind::kInotify;
  if (link == "anon_inode:[fanotify]") return kFanotify;
  return OpenFileKind::kOther;
}

uint32_t pipe_ends(uint32_t open_flags) {
  switch (open_flags & O_ACCMODE) {
    case O_RDONLY:
      return kOpenFilePipeReadEnd;
    case O_WRONLY:
      return kOpenFilePipeWriteEnd;
    default:
      return kOpenFilePipeReadEnd | kOpenFilePipeWriteEnd;
  }
}

}  // namespace

Result<void> Classifier::classify(CapturedDescriptor& d) {
  d.looked = true;
  d.flags = 0;
  d.value = 0;
  d.details = nullptr;
  d.details_len = 0;
  d.has_locks = d.has_lease = false;
  CKPT_TRY(names_.read_path(d));
  const std::string_view path(d.path, d.path_len);
  const uint32_t type = d.now.mode & S_IFMT;
  d.kind = OpenFileKind::kOther;

  if ((d.now.open_flags & O_PATH) != 0) {
    return classify_place(d, path);
  }
  if (path.starts_with("anon_inode:")) {
    d.kind = anonymous_kind(path);
    if (d.kind == OpenFileKind::kOther) return {};
    FdInfo info;
    if (access_.read_info(d, info) < 0) return {};  // closed while the program runs: the stop looks again
    return read_details(d, info);
  }
  switch (type) {
    case S_IFREG:
    case S_IFDIR:
      return classify_file(d, path);
    case S_IFIFO:
      d.flags |= pipe_ends(d.now.open_flags);
      // A FIFO whose name was removed is a pipe.
      d.kind = d.named ? OpenFileKind::kFifo : OpenFileKind::kPipe;
      return read_first_locks(d);
    case S_IFCHR:
    case S_IFBLK:
      return classify_device(d, path);
    default:
      return {};
  }
}

// A place in the file system, not an open file: no offset, no bytes.
Result<void> Classifier::classify_place(CapturedDescriptor& d, std::string_view path) const {
  const OpenFileKind kind = S_ISDIR(d.now.mode) ? OpenFileKind::kDirectory : OpenFileKind::kRegular;
  if (d.named) {
    d.kind = kind;
    return {};
  }
  const bool can_be_made =
      S_ISDIR(d.now.mode) || S_ISLNK(d.now.mode) || (S_ISREG(d.now.mode) && !path.starts_with("/memfd:"));
  if (!can_be_made || d.now.links != 0 || !path.starts_with('/') ||
      is_made_by_the_kernel(TaskPath(access_.tid_of(d), "fd", d.fd).c_str()))
    return {};
  if (S_ISLNK(d.now.mode) && !read_target(d)) return {};
  d.kind = kind;
  d.flags |= kOpenFileDeleted;
  return {};
}

// Where a symbolic link leads that has no name. False: it cannot be read, or there is no memory.
bool Classifier::read_target(CapturedDescriptor& d) const {
  // The link of /proc would tell the name; what is opened by it is the symbolic link.
  const ScopedFd link(static_cast<int>(sys::call(
      __NR_openat, AT_FDCWD, TaskPath(access_.tid_of(d), "fd", d.fd).c_str(), O_PATH | O_CLOEXEC, 0L)));
  if (!link.valid()) return false;
  char target[4096];
  const long n = sys::call(__NR_readlinkat, link.get(), "", target, sizeof(target));
  if (n <= 0 || n == static_cast<long>(sizeof(target))) return false;
  const auto length = static_cast<uint32_t>(n), padded = (length + 7) & ~uint32_t{7};
  ByteWriter out(files_.arena());
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLinkTarget), padded + 8});
  out.put(LinkTargetDetail{length, 0});
  static constexpr char kZeros[8] = {};
  out.raw(target, length);
  out.raw(kZeros, padded - length);
  if (!out.ok()) return false;
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  return true;
}

Result<void> Classifier::classify_file(CapturedDescriptor& d, std::string_view path) {
  if (!d.named) {
    struct statfs fs {};
    sys::call(__NR_statfs, TaskPath(access_.tid_of(d), "fd", d.fd).c_str(), &fs);
    // A directory may be called "/memfd:", too.
    const bool of_memory = fs.f_type == TMPFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC;
    if (of_memory && path.starts_with("/memfd:") && d.now.links == 0) {
      d.kind = OpenFileKind::kMemfd;
      d.path += sizeof("/memfd:") - 1;
      d.path_len -= sizeof("/memfd:") - 1;
      if (fs.f_type == HUGETLBFS_MAGIC) d.value = static_cast<uint64_t>(fs.f_bsize);
      return read_first_locks(d);
    }
    if (path.starts_with('/') && fs.f_type == kMessageQueues) d.kind = OpenFileKind::kMessageQueue;
    if (!path.starts_with('/') || has_no_bytes(fs.f_type)) return {};
    if (!has_volatile_inodes(fs.f_type)) d.flags |= kOpenFileDeleted;
  }
  d.kind = S_ISDIR(d.now.mode) ? OpenFileKind::kDirectory : OpenFileKind::kRegular;
  return read_first_locks(d);
}

Result<void> Classifier::classify_device(CapturedDescriptor& d, std::string_view path) {
  const bool is_character = S_ISCHR(d.now.mode);
  if (is_character && d.now.rdev == makedev(5, 2)) {
    d.kind = kTerminalMaster;
    // One that is opened between here and the stop is the program's own.
    if (!access_.stands()) {
      d.held_by = terminal_holders::above_job(
          job::own_job.identity.root,
          terminal_holders::number_of_master(sys::getpid(), access_.tid_of(d), d.fd));
    }
  } else if (is_character && is_terminal(d.now.rdev, path)) {
    d.kind = OpenFileKind::kTerminal;
  } else if (can_be_opened_again(d.now.mode, d.now.rdev)) {
    const char* usual = d.named ? d.path : usual_name(d.now.mode, d.now.rdev);
    if (usual == nullptr) return {};
    if (usual != d.path) {
      d.path = usual;
      d.path_len = static_cast<uint32_t>(std::strlen(usual));
    }
    d.kind = OpenFileKind::kDevice;
    return read_first_locks(d);
  }
  return {};
}

// flock(2) takes a lock of anything that is open, also of a directory, a FIFO or a device.
Result<void> Classifier::read_first_locks(CapturedDescriptor& d) {
  return d.now.locks != 0 ? read_locks(d) : Result<void>();
}

Result<void> Classifier::read_locks(CapturedDescriptor& d) {
  FdInfo info;
  if (access_.read_info(d, info) < 0) return {};
  if (!info.has_locks && !d.has_locks) return {};
  return read_details(d, info);
}

}  // namespace ckpt
