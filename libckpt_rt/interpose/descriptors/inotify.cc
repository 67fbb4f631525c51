#include "libckpt_rt/interpose/descriptors/inotify.h"

#include "base/sys.h"
#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long inotify_add_watch(int fd, const char* path, uint32_t mask) {
  const long watch = sys::call(__NR_inotify_add_watch, long{fd}, path, mask);
  if (watch >= 0) watch_names::note(path, mask);
  return watch;
}

}  // namespace ckpt::calls

CKPT_INTERPOSE(int, inotify_add_watch, int fd, const char* path, uint32_t mask) {
  return ckpt::to_errno<int>(ckpt::calls::inotify_add_watch(fd, path, mask));
}
