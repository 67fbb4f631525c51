// The directory beside an image in which files are kept. Made when the first of them goes there, and open only
// while something does: a program at its limit of descriptors has room for few of ours.
//
// Owner:     FileKeeper. Callers: the agent, while the program runs and in the stop.
// Never:     allocates, touches errno; removes the directory: members of a job share it.
#pragma once

#include <fcntl.h>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "image/format/kept_names.h"

namespace ckpt {

class KeptDirectory {
 public:
  // images: the directory of the images, valid as long as this is used.
  void be_in(int images, const KeptName& name) {
    images_ = images;
    name_ = name;
  }
  bool open() {
    if (fd_.valid()) return true;
    sys::call(__NR_mkdirat, images_, name_.text, 0700L);
    // A member of another user may make names in the job's, not read it.
    fd_ = ScopedFd(static_cast<int>(
        sys::call(__NR_openat, images_, name_.text, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
    return fd_.valid();
  }
  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

 private:
  int images_ = -1;
  KeptName name_;
  ScopedFd fd_;
};

}  // namespace ckpt
