// The lock of an image directory: one job's checkpoint is made, counted or removed there at a time.
//
// Owner:     job. Callers: as those of job_directory.h. Raw system calls, no allocation.
// Locks:     flock(2) of the directory. Whoever may read a directory may lock it: where only users have it
//            who may not write there (a directory of mode 0755), the lock is that of the file `.job-lock` in
//            it, 0600. Whoever gets the directory looks at the file, and whoever gets the file looks at the
//            directory again: so two have never both.
#pragma once

#include "base/raii_fd.h"

namespace ckpt::job {

class DirectoryLock {
 public:
  // False: another process has it. On a file system without locks every caller gets it. It is held as long as
  // both this and `directory` are there.
  bool try_take(int directory);
  void release(int directory);

 private:
  ScopedFd file_;
};

}  // namespace ckpt::job
