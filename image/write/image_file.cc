#include "image/write/image_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/sys.h"
#include "image/format/io_error.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// Bytes. As much again as there is: what is too much is given back in the end, and that is not free.
constexpr uint64_t kLeastReserved = 4ull << 20, kMostReserved = 64ull << 20;

// Writes that a killed process has given to the disk keep its file locked until they are done: a program that
// is restarted at once may come before that. False: the holder of the lock lives.
bool lock_soon(int fd) {
  constexpr int64_t kPatienceNs = 2'000'000'000;
  constexpr timespec kStep{0, 5'000'000};
  const int64_t deadline = now_ns() + kPatienceNs;
  while (sys::call(__NR_flock, fd, static_cast<long>(LOCK_EX | LOCK_NB)) == -EWOULDBLOCK) {
    if (now_ns() > deadline) return false;
    sys::call(__NR_nanosleep, &kStep, nullptr);
  }
  return true;
}

Error written_by_another(const char* path) {
  return make_error(ExitCode::kCannotCreate, EBUSY,
                    "{}.tmp is being written by another process; give each program its own CKPT_DIR",
                    shown_path(path).text);
}

long rename_to_new(int dir_fd, const char* from, const char* to) {
  long r = sys::call(__NR_renameat2, dir_fd, from, dir_fd, to, static_cast<long>(RENAME_NOREPLACE));
  if (r != -EINVAL && r != -ENOSYS) return r;
  // A file system without RENAME_NOREPLACE. Nobody else makes names with our run id and sequence.
  struct stat st;
  if (!sys::failed(sys::call(__NR_newfstatat, dir_fd, to, &st, static_cast<long>(AT_SYMLINK_NOFOLLOW)))) {
    return -EEXIST;
  }
  return sys::call(__NR_renameat, dir_fd, from, dir_fd, to);
}

}  // namespace

bool has_name(int fd, int dir_fd, const char* name) {
  struct stat file, named;
  return !sys::failed(sys::call(__NR_newfstatat, fd, "", &file, static_cast<long>(AT_EMPTY_PATH))) &&
         !sys::failed(
             sys::call(__NR_newfstatat, dir_fd, name, &named, static_cast<long>(AT_SYMLINK_NOFOLLOW))) &&
         file.st_dev == named.st_dev && file.st_ino == named.st_ino;
}

void ImageFile::find_path(int dir_fd) {
  // The writer has a descriptor table of its own: /proc/self would name the program's.
  char link[40];
  auto out = fmt::format_to_n(link, sizeof(link) - 1, "/proc/thread-self/fd/{}", dir_fd);
  *out.out = '\0';
  long n = sys::call(__NR_readlink, link, path_, sizeof(path_) - sizeof(name_) - 2);
  if (n <= 0) n = 0;
  char* at = path_ + n;
  if (n > 0 && at[-1] != '/') *at++ = '/';
  std::memcpy(at, name_, std::strlen(name_) + 1);
}

Result<void> ImageFile::create(int dir_fd, const char* name, bool want_direct) {
  size_t n = std::strlen(name);
  if (n >= sizeof(name_)) {
    return make_error(ExitCode::kInternal, ENAMETOOLONG, "image name of {} characters is too long", n);
  }
  dir_fd_ = dir_fd;
  std::memcpy(name_, name, n + 1);
  std::memcpy(temporary_, name, n);
  std::memcpy(temporary_ + n, ".tmp", 5);
  reserved_ = 0;
  find_path(dir_fd);
  CKPT_TRY(create_exclusively());
  direct_ = false;
  if (want_direct) {
    // Some file systems refuse O_DIRECT at open; asking afterwards keeps the file that we have.
    direct_ = !sys::failed(sys::call(__NR_fcntl, fd_.get(), static_cast<long>(F_SETFL), O_DIRECT));
  }
  struct statfs fs;
  in_memory_ = !sys::failed(sys::call(__NR_fstatfs, fd_.get(), &fs)) && fs.f_type == TMPFS_MAGIC;
  // Reserved space there is memory, and is filled with zeros.
  reserving_ = direct_ && !in_memory_;
  return {};
}

Result<void> ImageFile::create_exclusively() {
  const long flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  // Others may come between; a file system that gives a file other numbers each time it is looked at makes it
  // look so.
  for (int left = 16;; left--) {
    long fd = sys::call(__NR_openat, dir_fd_, temporary_, flags, 0600L);
    if (fd == -EEXIST && left > 0) {
      CKPT_TRY(unlink_stale());
      continue;
    }
    if (fd == -EEXIST) return written_by_another(path_);
    if (sys::failed(fd)) return image_io_error("create", path_, fd);
    fd_.reset(static_cast<int>(fd));
    // Another program that tidies the directory (remove_dead_leftovers) may have found the file before it
    // was locked. That program holds the lock until it has removed the name: then it is for us to begin
    // again.
    sys::call(__NR_flock, fd_.get(), static_cast<long>(LOCK_EX));
    struct stat st;
    long r = sys::call(__NR_newfstatat, fd_.get(), "", &st, static_cast<long>(AT_EMPTY_PATH));
    if (sys::failed(r) || st.st_nlink != 0) break;
    fd_.reset();  // the next that has the name may be another's
  }
  long r = sys::call(__NR_fchmod, fd_.get(), 0600L);  // the umask may have taken bits away
  if (sys::failed(r)) {
    remove();
    return image_io_error("set the mode of", path_, r);
  }
  return {};
}

Result<void> ImageFile::unlink_stale() {
  long old = sys::call(__NR_openat, dir_fd_, temporary_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  if (old == -ENOENT) return {};
  const ScopedFd stale(sys::failed(old) ? -1 : static_cast<int>(old));  // locked until the name is gone
  if (stale.valid()) {
    if (!lock_soon(stale.get())) return written_by_another(path_);
    // Published or removed since it was opened: what has the name now is another's, if there is one.
    if (!has_name(stale.get(), dir_fd_, temporary_)) return {};
  }
  // A link is not followed above; unlinking removes the link, not what it leads to.
  long r = sys::call(__NR_unlinkat, dir_fd_, temporary_, 0L);
  if (sys::failed(r) && r != -ENOENT) return image_io_error("replace the old .tmp of", path_, r);
  return {};
}

void ImageFile::reserve_until(uint64_t bytes) {
  if (!reserving_ || bytes <= reserved_) return;
  const uint64_t step = std::clamp(reserved_, kLeastReserved, kMostReserved);
  const uint64_t want = (bytes + step - 1) / step * step;
  long r = sys::call(__NR_fallocate, fd_.get(), 0L, reserved_, want - reserved_);
  if (sys::failed(r)) {
    reserving_ = false;
  } else {
    reserved_ = want;
  }
}

Result<void> ImageFile::publish(FileBackend& backend, uint64_t bytes, bool replace) {
  // Also after a failed reservation: it may have left blocks behind the end.
  long r = sys::call(__NR_ftruncate, fd_.get(), bytes);
  if (sys::failed(r)) return image_io_error("set the length of", path_, r);
  r = backend.sync(fd_.get());
  if (sys::failed(r)) return image_io_error("make durable (fsync)", path_, r);
  points::at("commit.durable");
  r = replace ? sys::call(__NR_renameat, dir_fd_, temporary_, dir_fd_, name_)
              : rename_to_new(dir_fd_, temporary_, name_);
  if (sys::failed(r)) return image_io_error("rename the finished .tmp to", path_, r);
  temporary_[0] = '\0';
  points::at("commit.renamed");
  r = backend.sync(dir_fd_);
  if (sys::failed(r)) {
    // Nobody may count on a name that the next power failure can take back. Where it replaced another,
    // that one comes back then, and both are complete.
    if (!replace) sys::call(__NR_unlinkat, dir_fd_, name_, 0L);
    return image_io_error("make durable (fsync of the directory)", path_, r);
  }
  fd_.reset();
  points::at("commit.named");
  return {};
}

void ImageFile::remove() {
  if (fd_.valid() && temporary_[0] != '\0') sys::call(__NR_unlinkat, dir_fd_, temporary_, 0L);
  temporary_[0] = '\0';
  fd_.reset();
}

}  // namespace ckpt
