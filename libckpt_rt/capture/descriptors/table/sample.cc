#include "libckpt_rt/capture/descriptors/table/sample.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr int kDupFdQuery = 1024 + 3;  // F_DUPFD_QUERY of linux/fcntl.h

int64_t to_ns(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

void take_stat(const struct stat& st, DescriptorSample& s) {
  s.mode = st.st_mode;
  s.links = static_cast<uint32_t>(st.st_nlink);
  s.device = st.st_dev;
  s.inode = st.st_ino;
  s.uid = st.st_uid;
  s.gid = st.st_gid;
  s.rdev = st.st_rdev;
  s.size = static_cast<uint64_t>(st.st_size);
  s.mtime_ns = to_ns(st.st_mtim);
  s.ctime_ns = to_ns(st.st_ctim);
}

// Whom the kernel signals when something happens to the open file, and how.
void sample_owner(int fd, DescriptorSample& s) {
  f_owner_ex owner{};
  if (sys::call(__NR_fcntl, fd, F_GETOWN_EX, &owner) != 0) return;
  if (owner.pid == 0 && !file_signals::any_chosen.load(std::memory_order_relaxed)) return;
  s.owner = owner.pid;
  s.owner_type = static_cast<uint32_t>(owner.type);
  const long signal = sys::call(__NR_fcntl, fd, F_GETSIG, 0);
  s.owner_signal = signal < 0 ? 0 : static_cast<int>(signal);
}

}  // namespace

void sample_own_descriptor(int fd, int partner, DescriptorSample& s) {
  struct stat st;
  long r = sys::call(__NR_fstat, fd, &st);
  if (r < 0) {
    s.error = static_cast<int>(-r);
    return;
  }
  s.error = 0;
  take_stat(st, s);
  s.open_flags = static_cast<uint32_t>(sys::call(__NR_fcntl, fd, F_GETFL, 0));
  s.fd_flags = static_cast<uint32_t>(sys::call(__NR_fcntl, fd, F_GETFD, 0));
  // Linux 6.10; a third of the price of kcmp(2).
  s.same = partner < 0 ? -EBADF : static_cast<int>(sys::call(__NR_fcntl, fd, kDupFdQuery, partner));
  s.locks = -1;
  if ((s.open_flags & O_PATH) != 0) return;
  const uint32_t type = s.mode & S_IFMT;
  if (type == S_IFREG || type == S_IFDIR || type == S_IFBLK) {
    long offset = sys::call(__NR_lseek, fd, 0L, SEEK_CUR);
    s.offset = offset < 0 ? 0 : static_cast<uint64_t>(offset);
    if (type == S_IFREG && s.links == 0) {
      long seals = sys::call(__NR_fcntl, fd, F_GET_SEALS, 0);
      s.seals = seals < 0 ? 0 : static_cast<uint32_t>(seals);
    }
    if (type != S_IFBLK) sample_owner(fd, s);  // of a lease, or of F_NOTIFY
    return;
  }
  if (type == S_IFIFO) {
    int queued = 0;
    if (sys::call(__NR_ioctl, fd, FIONREAD, &queued) == 0) s.queued = queued;
    const bool writes = (s.open_flags & O_ACCMODE) == O_WRONLY;
    pollfd end{fd, 0, 0};  // POLLERR and POLLHUP are always told
    if ((s.open_flags & O_ACCMODE) != O_RDWR && sys::call(__NR_poll, &end, 1L, 0L) == 1)
      s.other_end_gone = (end.revents & (writes ? POLLERR : POLLHUP)) != 0;
    long size = sys::call(__NR_fcntl, fd, F_GETPIPE_SZ, 0);
    s.pipe_size = size < 0 ? 0 : static_cast<uint32_t>(size);
  }
  sample_owner(fd, s);
}

bool sample_from_outside(int tid, int fd, std::span<char> text, Arena& arena, DescriptorSample& s) {
  struct stat st;
  if (stat_descriptor(tid, fd, st) < 0) return false;
  FdInfo info;
  if (read_fdinfo(tid, fd, text, arena, info) < 0) return false;
  s.error = 0;
  s.same = -EBADF;
  s.locks = info.has_locks ? 1 : 0;
  take_stat(st, s);
  s.open_flags = info.flags & ~static_cast<uint32_t>(O_CLOEXEC);
  s.fd_flags = (info.flags & O_CLOEXEC) != 0 ? FD_CLOEXEC : 0;
  s.offset = static_cast<uint64_t>(info.position);
  return true;
}

}  // namespace ckpt
