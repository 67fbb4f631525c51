#include "libckpt_rt/interpose/descriptors/file_watches.h"

#include <linux/capability.h>
#include <linux/fanotify.h>

#include "base/machine/capabilities.h"
#include "base/sys.h"
#include "libckpt_rt/capture/descriptors/noted/fanotify_groups.h"
#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long inotify_add_watch(int fd, const char* path, uint32_t mask) {
  const long watch = sys::call(__NR_inotify_add_watch, long{fd}, path, mask);
  if (watch >= 0) watch_names::note(path, mask);
  return watch;
}

long fanotify_init(unsigned flags, unsigned event_flags) {
  const bool permits = (flags & (FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT)) != 0;
  if (permits) fanotify_groups::before_permissions();
  const long group = sys::call(__NR_fanotify_init, long{flags}, long{event_flags});
  if (permits) fanotify_groups::after_permissions();
  // A filter may forbid to ask.
  if (group >= 0 && !seccomp_state.filtered.load(std::memory_order_relaxed))
    fanotify_groups::note_made((own_capabilities().effective >> CAP_SYS_ADMIN & 1) != 0);
  return group;
}

long fanotify_mark(int group, unsigned flags, uint64_t mask, int directory, const char* path) {
  const long r = sys::call(__NR_fanotify_mark, long{group}, long{flags}, mask, long{directory}, path);
  if (r == 0 && (flags & FAN_MARK_ADD) != 0 && !seccomp_state.filtered.load(std::memory_order_relaxed))
    watch_names::note_at(directory, path, (flags & FAN_MARK_DONT_FOLLOW) == 0);
  return r;
}

long watch_files(long nr, long a, long b, long c, long d, long e) {
  switch (nr) {
    case __NR_inotify_add_watch:
      return inotify_add_watch(static_cast<int>(a), reinterpret_cast<const char*>(b),
                               static_cast<uint32_t>(c));
    case __NR_fanotify_init:
      return fanotify_init(static_cast<unsigned>(a), static_cast<unsigned>(b));
    default:
      return fanotify_mark(static_cast<int>(a), static_cast<unsigned>(b), static_cast<uint64_t>(c),
                           static_cast<int>(d), reinterpret_cast<const char*>(e));
  }
}

}  // namespace ckpt::calls

CKPT_INTERPOSE(int, inotify_add_watch, int fd, const char* path, uint32_t mask) {
  return ckpt::to_errno<int>(ckpt::calls::inotify_add_watch(fd, path, mask));
}

CKPT_INTERPOSE(int, fanotify_init, unsigned flags, unsigned event_flags) {
  return ckpt::to_errno<int>(ckpt::calls::fanotify_init(flags, event_flags));
}

CKPT_INTERPOSE(int, fanotify_mark, int group, unsigned flags, uint64_t mask, int directory,
               const char* path) {
  return ckpt::to_errno<int>(ckpt::calls::fanotify_mark(group, flags, mask, directory, path));
}
