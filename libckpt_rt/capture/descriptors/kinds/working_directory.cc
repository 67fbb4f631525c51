#include "libckpt_rt/capture/descriptors/kinds/working_directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/table/sample.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> WorkingDirectory::look(int tid) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/cwd", tid).out = '\0';
  struct stat st {};
  if (sys::call(__NR_newfstatat, AT_FDCWD, path, &st, 0L) != 0 || st.st_nlink != 0) return {};
  ScopedFd directory(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0L)));
  if (!directory.valid()) return {};
  CapturedDescriptor d = unknown_descriptor(directory.get());
  d.in_flight = true;
  sample_own_descriptor(d.fd, -1, d.now);
  CKPT_TRY(classifier_.classify(d));
  if (d.kind != OpenFileKind::kDirectory || (d.flags & kOpenFileDeleted) == 0) return {};
  d.flags |= kOpenFileWorkingDirectory;
  if (!files_.entries().push_back(d)) return arena_full(files_.arena());
  directory.release();
  files_.note_change();
  return {};
}

}  // namespace ckpt
