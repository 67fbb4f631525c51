// The directory beside an image in which files are kept. Made when the first of them goes there, and open
// only while something does: a program at its limit of descriptors has room for few of ours. Locked from then
// on, until the image is there or given up: programs that tidy the directory leave it
// (remove_orphaned_saved_files), also those of another pid namespace, for which our pid says nothing.
//
// Owner:     FileSaver. Callers: the agent, while the program runs and in the stop.
// Never:     allocates, touches errno; removes the directory: members of a job share it.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include <utility>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "image/format/saved_file_names.h"
#include "image/write/image_file.h"

namespace ckpt {

class SavedFilesDirectory {
 public:
  // images: the directory of the images, valid as long as this is used.
  void be_in(int images, const SavedFileName& name) {
    locked_.reset();
    images_ = images;
    name_ = name;
  }
  bool open() {
    if (fd_.valid()) return true;
    make_and_lock();
    // A member of another user may make names in the job's, not read it.
    fd_ = ScopedFd(static_cast<int>(
        sys::call(__NR_openat, images_, name_.text, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
    return fd_.valid();
  }
  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }
  // A name was made in it, or taken away.
  void note_change() { changed_ = true; }
  // Names that were made since the last time stay after a power failure. Below 0: -errno.
  long make_durable() {
    if (!changed_) return 0;
    const ScopedFd names(static_cast<int>(
        sys::call(__NR_openat, images_, name_.text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
    if (!names.valid() && !locked_.valid()) return names.get();
    const long r = sys::call(__NR_fsync, names.valid() ? names.get() : locked_.get());
    changed_ = sys::failed(r);
    return r;
  }

 private:
  static constexpr int kNeeded = 24;  // descriptors, for a whole checkpoint

  void make_and_lock() {
    // Another program may remove it before it is locked.
    for (int left = 16; left > 0; --left) {
      sys::call(__NR_mkdirat, images_, name_.text, 0700L);
      if (locked_.valid()) return;
      ScopedFd made(static_cast<int>(
          sys::call(__NR_openat, images_, name_.text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
      // A job's may be another user's. Nobody tidies those.
      if (!made.valid()) return;
      // Under a low limit it is not held: a checkpoint needs its descriptors more.
      const ScopedFd spare(
          static_cast<int>(sys::call(__NR_fcntl, made.get(), F_DUPFD_CLOEXEC, made.get() + kNeeded)));
      if (!spare.valid()) return;
      if (sys::call(__NR_flock, made.get(), static_cast<long>(LOCK_SH | LOCK_NB)) != -EWOULDBLOCK &&
          has_name(made.get(), images_, name_.text)) {
        locked_ = std::move(made);
        return;
      }
    }
  }

  int images_ = -1;
  SavedFileName name_;
  ScopedFd fd_;
  ScopedFd locked_;
  bool changed_ = false;
};

}  // namespace ckpt
