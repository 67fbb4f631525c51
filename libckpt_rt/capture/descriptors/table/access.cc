#include "libckpt_rt/capture/descriptors/table/access.h"

#include <errno.h>
#include <fcntl.h>

#include "base/sys.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr size_t kTextBytes = 64 << 10;

}  // namespace

Error arena_full(const Arena& arena) {
  return make_error(ExitCode::kInternal, ENOMEM, "no memory to record the descriptors ({} bytes used)",
                    arena.used());
}

Result<void> DescriptorAccess::begin(Arena& arena, int tid) {
  arena_ = &arena;
  tid_ = tid;
  stands_ = false;
  auto* text = static_cast<char*>(arena.allocate(kTextBytes));
  if (text == nullptr) return arena_full(arena);
  text_ = {text, kTextBytes};
  return {};
}

int DescriptorAccess::borrow(const CapturedDescriptor& d, int fd) {
  if (d.in_flight) return static_cast<int>(sys::call(__NR_fcntl, fd, F_DUPFD_CLOEXEC, 0));
  if (!may_borrow_) return -EBADF;
  if (pidfd_ < 0) {
    // A pidfd of a thread needs Linux 6.9; the leader's works everywhere. Few programs have a descriptor that
    // asks for it.
    const bool leader = tid_ == sys::getpid();
    pidfd_ = static_cast<int>(sys::call(__NR_pidfd_open, tid_, leader ? 0 : O_EXCL /* PIDFD_THREAD */));
    if (pidfd_ < 0) return pidfd_;
  }
  return static_cast<int>(sys::call(__NR_pidfd_getfd, pidfd_, fd, 0));
}

void DescriptorAccess::give_up() {
  if (pidfd_ >= 0) sys::call(__NR_close, pidfd_);
  pidfd_ = -1;
  may_borrow_ = false;
}

long DescriptorAccess::read_info(const CapturedDescriptor& d, FdInfo& info) const {
  return d.proc_fd >= 0 ? reread_fdinfo(d.proc_fd, text_, *arena_, info)
                        : read_fdinfo(tid_of(d), d.fd, text_, *arena_, info);
}

}  // namespace ckpt
