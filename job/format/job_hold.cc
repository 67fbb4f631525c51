#include "job/format/job_hold.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "job/format/job_name.h"
#include "base/preload_rules.h"

namespace ckpt::job {

Result<ScopedFd> hold_job(const char* path) {
  const long opened = sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L);
  const ScopedFd directory(sys::failed(opened) ? -1 : static_cast<int>(opened));
  const long manifest = sys::call(__NR_openat, directory.get(), kManifestName,
                                  O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  ScopedFd file(sys::failed(manifest) ? -1 : static_cast<int>(manifest));
  struct stat held, named;
  if (file.valid() &&
      sys::call(__NR_flock, file.get(), static_cast<long>(LOCK_SH | LOCK_NB)) != -EWOULDBLOCK &&
      sys::call(__NR_fstat, file.get(), &held) == 0 &&
      sys::call(__NR_newfstatat, directory.get(), kManifestName, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
      held.st_ino == named.st_ino && held.st_dev == named.st_dev)
    return file;
  return make_error(
      ExitCode::kNotFound, ENOENT,
      "{}: removed while it was opened, as programs do with their old checkpoints; name a newer one", path);
}

void release_job(const ScopedFd& held) {
  if (held.valid()) sys::call(__NR_flock, held.get(), static_cast<long>(LOCK_UN));
}

}  // namespace ckpt::job
