#include "libckpt_rt/checkpoint/stages/kept_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <string_view>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "image/format/kept_names.h"
#include "image/write/kept_files.h"
#include "libckpt_rt/capture/descriptors/proc.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/beginning.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kMostCopied = 16 << 20, kMostCopiedInAll = 64 << 20;  // bytes
// A copy of what was written since is not one of any instant.
constexpr int64_t kQuiet = 20'000'000;  // ns

int64_t ns_of(const struct timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

// What a program removes or replaces it has written, as a rule, or made.
bool is_wanted(const struct stat& st, uint32_t open_flags, KeptFiles how) {
  if (!S_ISREG(st.st_mode) || st.st_nlink == 0 || (open_flags & O_PATH) != 0) return false;
  return how != KeptFiles::kAuto || (open_flags & O_ACCMODE) != O_RDONLY ||
         ns_of(st.st_ctim) >= program_began_ns();
}

// What it shows is made anew for each look.
bool is_made_by_the_kernel(const char* path) {
  struct statfs fs {};
  if (sys::call(__NR_statfs, path, &fs) != 0) return true;
  switch (fs.f_type) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
    case ANON_INODE_FS_MAGIC:
    case NSFS_MAGIC:
      return true;
    default:
      return false;
  }
}

class Keeper {
 public:
  Keeper(Arena& arena, int directory, const char* image, KeptFiles how)
      : arena_(arena), directory_(directory), name_(kept_directory_of(image)), how_(how) {}

  void keep(int tid, int fd) {
    struct stat st;
    FdInfo info;
    char text[1024];
    if (stat_descriptor(tid, fd, st) != 0 || !S_ISREG(st.st_mode)) return;
    if (read_fdinfo(tid, fd, text, arena_, info) < 0 || !is_wanted(st, info.flags, how_)) return;
    const TaskPath path(tid, "fd", fd);
    struct stat images;
    if (sys::call(__NR_fstat, directory_, &images) != 0 || !open_kept()) {
      ++not_covered_;
      return;
    }
    if (how_ != KeptFiles::kCopies && images.st_dev == st.st_dev) {
      const KeptName link = kept_file_name(st.st_dev, st.st_ino, false);
      const long r =
          sys::call(__NR_linkat, AT_FDCWD, path.c_str(), kept_.get(), link.text, AT_SYMLINK_FOLLOW);
      if (r == 0 || r == -EEXIST) return;
    }
    if (is_made_by_the_kernel(path.c_str())) return;
    if (how_ == KeptFiles::kLinks || !copy(path.c_str(), st)) ++not_covered_;
  }

  uint32_t not_covered() const { return not_covered_; }

 private:
  bool open_kept() {
    if (kept_.valid()) return true;
    sys::call(__NR_mkdirat, directory_, name_.text, 0700L);
    // A member of another user may make names in the job's, not read it.
    kept_ = ScopedFd(static_cast<int>(
        sys::call(__NR_openat, directory_, name_.text, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
    return kept_.valid();
  }

  bool copy(const char* path, const struct stat& st) {
    const auto size = static_cast<uint64_t>(st.st_size);
    const KeptName name = kept_file_name(st.st_dev, st.st_ino, true);
    if (size > kMostCopied || copied_ + size > kMostCopiedInAll ||
        ns_of(st.st_mtim) > now_ns(CLOCK_REALTIME) - kQuiet)
      return false;
    const ScopedFd from(
        static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0L)));
    if (!from.valid()) return false;
    const ScopedFd to(static_cast<int>(sys::call(
        __NR_openat, kept_.get(), name.text, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600L)));
    if (!to.valid()) return to.get() == -EEXIST;
    bool whole = sys::call(__NR_ioctl, to.get(), FICLONE, from.get()) == 0;
    if (!whole) {
      uint64_t left = size;
      while (left > 0) {
        const long n = sys::call(__NR_sendfile, to.get(), from.get(), 0L, left);
        if (n <= 0) break;
        left -= static_cast<uint64_t>(n);
      }
      whole = left == 0;
      copied_ += size;
    }
    struct stat after;
    const timespec times[2] = {st.st_atim, st.st_mtim};
    whole = whole && sys::call(__NR_fstat, from.get(), &after) == 0 && after.st_size == st.st_size &&
            ns_of(after.st_mtim) == ns_of(st.st_mtim) &&
            sys::call(__NR_fchmod, to.get(), st.st_mode & 0777) == 0 &&
            sys::call(__NR_utimensat, to.get(), 0L, times, 0L) == 0;
    if (!whole) sys::call(__NR_unlinkat, kept_.get(), name.text, 0L);
    return whole;
  }

  Arena& arena_;
  const int directory_;
  const KeptName name_;
  const KeptFiles how_;
  ScopedFd kept_;
  uint64_t copied_ = 0;
  uint32_t not_covered_ = 0;
};

}  // namespace

void keep_files(Arena& arena, int directory, const char* image, KeptFiles how, int log) {
  program_began_ns();  // looked up while it runs
  if (how == KeptFiles::kNone) return;
  ArenaVector<int> fds(arena);
  const int tid = sys::getpid();
  if (list_descriptors(tid, fds) < 0) return;
  Keeper keeper(arena, directory, image, how);
  for (size_t i = 0; i < fds.size(); ++i) keeper.keep(tid, fds[i]);
  if (keeper.not_covered() != 0) {
    log_format(
        log, "{} open files are not kept beside the image (CKPT_FILES={}): a restart needs them as they are",
        keeper.not_covered(), kept_files_name(how));
  }
}

}  // namespace ckpt
