#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/epoll.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "image/format/records/terminal_records.h"
#include "image/write/directory/saved_files.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/file_systems.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/memory/other_name.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr std::string_view kDeletedSuffix = " (deleted)";

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

constexpr int64_t kMessageQueues = 0x19800202;  // file system type

// Where a regular file is not bytes that could be copied.
bool has_no_bytes(int64_t type) {
  constexpr int64_t kSecretMemory = 0x5345434d, kNamespaces = 0x6e736673, kPidFs = 0x50494446,
                    kDmaBuf = 0x444d4142;
  return type == kMessageQueues || type == kSecretMemory || type == kNamespaces || type == kPidFs ||
         type == kDmaBuf;
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

// The link is kept as the path, without the kernel's " (deleted)"; d.named says whether it leads to
// this very file.
Result<void> DescriptorCapture::read_path(CapturedDescriptor& d) {
  long n = read_link(access_.tid_of(d), d.fd, access_.text().data(), 8192);
  if (n == -ENOENT) d.looked = false;  // closed, perhaps for a moment: the stop looks again
  std::string_view link =
      n < 0 ? std::string_view("(path too long)") : std::string_view(access_.text().data(), n);
  d.named = false;
  if (link.starts_with('/')) {
    struct stat st;
    long r = sys::call(__NR_newfstatat, AT_FDCWD, access_.text().data(), &st,
                       S_ISLNK(d.now.mode) ? AT_SYMLINK_NOFOLLOW : 0);
    d.named = r == 0 && st.st_dev == d.now.device && st.st_ino == d.now.inode;
  }
  if (!d.named && d.now.links > 0 && (S_ISREG(d.now.mode) || S_ISFIFO(d.now.mode)) && link.starts_with('/')) {
    std::string_view removed = link;
    if (removed.ends_with(kDeletedSuffix)) removed.remove_suffix(kDeletedSuffix.size());
    if (take_other_name(d, removed)) return {};
  }
  if (!d.named && link.ends_with(kDeletedSuffix)) link.remove_suffix(kDeletedSuffix.size());
  if (d.path_len == link.size() && std::memcmp(d.path, link.data(), link.size()) == 0) return {};
  char* copy = static_cast<char*>(files_.arena().allocate(link.size() + 1, 1));
  if (copy == nullptr) return arena_full(files_.arena());
  std::memcpy(copy, link.data(), link.size());
  copy[link.size()] = '\0';
  d.path = copy;
  d.path_len = static_cast<uint32_t>(link.size());
  return {};
}

bool DescriptorCapture::has_names_of_others(const CapturedDescriptor& d) const {
  return d.now.links >
         (saved_files_ < 0 ? 0 : count_saved_links(saved_files_, saved_in_job_, d.now.device, d.now.inode));
}

// Called while the program runs. Links that are saved files of images do not count as names.
bool DescriptorCapture::has_one_name(const CapturedDescriptor& d) const {
  if (d.kind != OpenFileKind::kRegular || !d.named || (d.flags & kOpenFileDeleted) != 0) return false;
  if (d.now.links <= 1 || saved_files_ < 0) return d.now.links == 1;
  return d.now.links <= 1 + count_saved_links(saved_files_, saved_in_job_, d.now.device, d.now.inode);
}

// Its first name was removed, it still has another.
bool DescriptorCapture::take_other_name(CapturedDescriptor& d, std::string_view removed) {
  auto take = [&](const char* name, uint32_t length) {
    d.other_name = d.path = name;
    d.other_name_len = d.path_len = length;
    return d.named = true;
  };
  if (d.other_name != nullptr && is_name_of(d.other_name, d.now.device, d.now.inode))
    return take(d.other_name, d.other_name_len);
  for (const auto& other : files_.entries()) {
    if (other.named && other.now.inode == d.now.inode && other.now.device == d.now.device &&
        is_name_of(other.path, d.now.device, d.now.inode))
      return take(other.path, other.path_len);
  }
  struct statfs fs {};
  if (access_.stands() || !has_names_of_others(d) ||
      sys::call(__NR_statfs, TaskPath(access_.tid(), "fd", d.fd).c_str(), &fs) != 0 ||
      has_volatile_inodes(fs.f_type) || has_no_bytes(fs.f_type)) {
    return false;
  }
  char found[4096];
  const size_t length = find_other_name(removed, d.now.device, d.now.inode, found);
  if (length == 0) return false;
  char* copy = static_cast<char*>(files_.arena().allocate(length + 1, 1));
  if (copy == nullptr) return false;
  std::memcpy(copy, found, length + 1);
  return take(copy, static_cast<uint32_t>(length));
}

Result<void> DescriptorCapture::classify(CapturedDescriptor& d) {
  d.looked = true;
  d.flags = 0;
  d.value = 0;
  d.details = nullptr;
  d.details_len = 0;
  d.has_locks = d.has_lease = false;
  CKPT_TRY(read_path(d));
  const std::string_view path(d.path, d.path_len);
  const uint32_t type = d.now.mode & S_IFMT;
  d.kind = OpenFileKind::kOther;

  if ((d.now.open_flags & O_PATH) != 0) {
    // A place in the file system, not an open file: no offset, no bytes.
    if (d.named) {
      d.kind = type == S_IFDIR ? OpenFileKind::kDirectory : OpenFileKind::kRegular;
    } else if (type == S_IFDIR && d.now.links == 0 && path.starts_with('/') &&
               !is_made_by_the_kernel(TaskPath(access_.tid_of(d), "fd", d.fd).c_str())) {
      d.kind = OpenFileKind::kDirectory;
      d.flags |= kOpenFileDeleted;
    }
    return {};
  }
  if (path.starts_with("anon_inode:")) {
    d.kind = anonymous_kind(path);
    if (d.kind == OpenFileKind::kOther) return {};
    FdInfo info;
    long r = d.proc_fd >= 0 ? reread_fdinfo(d.proc_fd, access_.text(), files_.arena(), info)
                            : read_fdinfo(access_.tid_of(d), d.fd, access_.text(), files_.arena(), info);
    if (r < 0) return {};  // closed while the program runs: the stop looks again
    return read_details(d, info);
  }
  switch (type) {
    case S_IFREG:
    case S_IFDIR: {
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
      d.kind = type == S_IFDIR ? OpenFileKind::kDirectory : OpenFileKind::kRegular;
      return read_first_locks(d);
    }
    case S_IFIFO:
      d.flags |= pipe_ends(d.now.open_flags);
      // A FIFO whose name was removed is a pipe.
      d.kind = d.named ? OpenFileKind::kFifo : OpenFileKind::kPipe;
      return read_first_locks(d);
    case S_IFCHR:
    case S_IFBLK:
      if (type == S_IFCHR && d.now.rdev == makedev(5, 2)) {
        d.kind = kTerminalMaster;
      } else if (type == S_IFCHR && is_terminal(d.now.rdev, path)) {
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
    default:
      return {};
  }
}

// flock(2) takes a lock of anything that is open, also of a directory, a FIFO or a device.
Result<void> DescriptorCapture::read_first_locks(CapturedDescriptor& d) {
  return d.now.locks != 0 ? read_locks(d) : Result<void>();
}

Result<void> DescriptorCapture::read_locks(CapturedDescriptor& d) {
  FdInfo info;
  long r = d.proc_fd >= 0 ? reread_fdinfo(d.proc_fd, access_.text(), files_.arena(), info)
                          : read_fdinfo(access_.tid_of(d), d.fd, access_.text(), files_.arena(), info);
  if (r < 0) return {};
  if (!info.has_locks && !d.has_locks) return {};
  return read_details(d, info);
}

namespace {

// Watches of a number in these lines of an epoll's fdinfo.
uint32_t count_watches(std::string_view text, int number) {
  char head[32];
  const size_t length =
      static_cast<size_t>(fmt::format_to_n(head, sizeof(head), "tfd: {:8} ", number).out - head);
  uint32_t count = 0;
  for (size_t at = 0; (at = text.find({head, length}, at)) != text.npos; at += length) ++count;
  return count;
}

}  // namespace

// The descriptor of the open file that a watch is on. The watch tells the number at which the file was
// registered, which another file may have now, also one of the same inode: all eventfds share one, as do all
// timerfds and epolls. `before`: the lines of the epoll's fdinfo before that of the watch. nullptr: no
// descriptor is known to be that file; is_another: the one with that number is not.
const CapturedDescriptor* DescriptorCapture::watched_by(const CapturedDescriptor& epoll, int number,
                                                        uint64_t inode, std::string_view before,
                                                        bool& is_another) const {
  for (const auto& d : files_.entries()) {
    // No other open file has a socket's inode. The search below looks at the watches one by one, which takes
    // long in a server with thousands of connections.
    if (d.fd == number && d.now.inode == inode && S_ISSOCK(d.now.mode) && !d.in_flight) return &d;
  }
  struct {
    uint32_t epoll, number, earlier;
  } slot{static_cast<uint32_t>(epoll.fd), static_cast<uint32_t>(number), count_watches(before, number)};
  auto compare_with_watch = [&](const CapturedDescriptor& d) {
    constexpr int kCompareWatched = 7;  // KCMP_EPOLL_TFD of linux/kcmp.h
    return sys::call(__NR_kcmp, access_.tid_of(d), access_.tid_of(epoll), kCompareWatched, d.fd, &slot);
  };
  for (const auto& d : files_.entries()) {
    if (d.fd != number || d.in_flight) continue;
    const long order = compare_with_watch(d);
    if (order == 0 || (order < 0 && d.now.inode == inode)) return &d;  // below 0: the kernel does not compare
    is_another = order > 0;
  }
  for (const auto& d : files_.entries()) {
    if (d.now.inode == inode && d.fd != number && compare_with_watch(d) == 0) return &d;
  }
  return nullptr;
}

// Turns the lines of fdinfo that belong to one kind into details.
Result<void> DescriptorCapture::read_details(CapturedDescriptor& d, const FdInfo& info) {
  d.has_locks = info.has_locks;
  d.has_lease = false;
  if (d.kind == OpenFileKind::kEventFd) {
    d.value = info.eventfd_count;
    d.flags &= ~static_cast<uint32_t>(kOpenFileSemaphore);
    if (info.eventfd_semaphore > 0) d.flags |= kOpenFileSemaphore;
    d.details = nullptr;
    d.details_len = 0;
    return {};
  }
  if (d.kind == OpenFileKind::kPidFd) {
    d.value = static_cast<uint64_t>(info.pidfd);
    return {};
  }
  if (d.kind == OpenFileKind::kInotify) return note_watches(d, info.text);
  ByteWriter out(files_.arena());
  TimerDetail timer{};
  bool has_timer = false;
  std::string_view text = info.text, line;
  while (next_line(text, line)) {
    uint64_t a = 0, b = 0, c = 0;
    if (line.starts_with("lock:")) {
      // "lock:\t1: POSIX  ADVISORY  WRITE 123 fe:00:456 0 EOF"
      LockDetail lock{};
      if (line.find("->") != std::string_view::npos) continue;
      lock.kind =
          static_cast<uint32_t>(line.find("LEASE") != std::string_view::npos    ? FileLockKind::kLease
                                : line.find("FLOCK") != std::string_view::npos  ? FileLockKind::kFlock
                                : line.find("OFDLCK") != std::string_view::npos ? FileLockKind::kOpenFileLock
                                                                                : FileLockKind::kPosix);
      d.has_lease = d.has_lease || lock.kind == static_cast<uint32_t>(FileLockKind::kLease);
      lock.write = line.find(" WRITE ") != std::string_view::npos;
      size_t last = line.rfind(' ');
      size_t before = last == std::string_view::npos ? last : line.rfind(' ', last - 1);
      if (before == std::string_view::npos || !number_after(line.substr(before), " ", 10, a)) continue;
      lock.start = a;
      if (number_after(line.substr(last), " ", 10, b)) lock.length = b - a + 1;
      out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLock), sizeof(lock)});
      out.put(lock);
    } else if (number_after(line, "tfd:", 10, a) && number_after(line, "events:", 16, b) &&
               number_after(line, "data:", 16, c)) {
      EpollWatchDetail watch{static_cast<int32_t>(a), static_cast<uint32_t>(b), c};
      uint64_t inode = 0;
      const CapturedDescriptor* other = nullptr;
      bool is_another = false;
      if (access_.stands() && number_after(line, "ino:", 16, inode)) {
        const std::string_view before =
            info.text.substr(0, static_cast<size_t>(line.data() - info.text.data()));
        other = watched_by(d, watch.fd, inode, before, is_another);
      }
      if (d.in_flight && (other == nullptr || other->in_flight)) {
        CKPT_TRY(notes_.add(
            kChanged,
            "an epoll that was sent through a socket and not received watches a file that is not among "
            "the program's descriptors: that watch is lost after a restart, unless another process of the "
            "job has both"));
        continue;
      }
      if (other == nullptr && is_another) {
        CKPT_TRY(notes_.add(
            kChanged,
            "descriptor {} (an epoll) watches a file that was registered as descriptor {}, and that no "
            "descriptor leads to any more: that watch is lost after a restart, unless another process of "
            "the job shares the epoll and has the file",
            d.fd, watch.fd));
        continue;
      }
      if (other != nullptr && other->fd != watch.fd) {
        out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kMovedWatch), sizeof(MovedWatchDetail)});
        out.put(MovedWatchDetail{watch, other->fd, 0});
        continue;
      }
      out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kEpollWatch), sizeof(watch)});
      out.put(watch);
    } else if (number_after(line, "clockid:", 10, a)) {
      timer.clock = static_cast<int32_t>(a);
      timer.clock_ns = now_ns(timer.clock == CLOCK_REALTIME_ALARM   ? CLOCK_REALTIME
                              : timer.clock == CLOCK_BOOTTIME_ALARM ? CLOCK_BOOTTIME
                                                                    : timer.clock);
      has_timer = true;
    } else if (number_after(line, "ticks:", 10, a)) {
      timer.ticks = a;
    } else if (number_after(line, "settime flags:", 8, a)) {
      timer.flags = static_cast<uint32_t>(a);
    } else if (number_after(line, "it_value: (", 10, a) && number_after(line, ",", 10, b)) {
      timer.remaining_ns = static_cast<int64_t>(a * 1'000'000'000 + b);
    } else if (number_after(line, "it_interval: (", 10, a) && number_after(line, ",", 10, b)) {
      timer.interval_ns = static_cast<int64_t>(a * 1'000'000'000 + b);
    }
  }
  if (has_timer) {
    take_up_timer(d, timer);
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kTimer), sizeof(timer)});
    out.put(timer);
  }
  if (!out.ok()) return arena_full(files_.arena());
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  if (d.kind == OpenFileKind::kSignalFd) d.value = info.signal_mask;
  return {};
}

// A periodic timer that has expired, of which nothing was read yet, does not run: fdinfo says that nothing is
// left of its time. Asked for it, the kernel counts what has gone by since, and starts it again, as at a
// read.
void DescriptorCapture::take_up_timer(const CapturedDescriptor& d, TimerDetail& timer) {
  if (timer.ticks == 0 || timer.interval_ns == 0 || timer.remaining_ns != 0) return;
  const ScopedFd own(access_.borrow(d));
  itimerspec left{};
  if (!own.valid() || sys::call(__NR_timerfd_gettime, own.get(), &left) != 0) return;
  timer.remaining_ns = left.it_value.tv_sec * 1'000'000'000L + left.it_value.tv_nsec;
  char path[64], text[512];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/thread-self/fdinfo/{}", own.get()).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  uint64_t ticks = 0;
  if (n > 0 && number_after(line_of({text, static_cast<size_t>(n)}, "\nticks:"), "", 10, ticks))
    timer.ticks = ticks;
}

}  // namespace ckpt
