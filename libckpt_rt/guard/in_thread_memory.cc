#include "libckpt_rt/guard/in_thread_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "base/machine/kernel_caps.h"
#include "base/settings/settings.h"
#include "base/sys.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// On a thread of the program. High up, where the program's own do not come: those begin at the lowest free
// number.
void open_in_program(void* answer) {
  auto& fd = *static_cast<long*>(answer);
  fd = sys::call(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  if (sys::failed(fd)) return;
  rlimit limit{};
  uint64_t from = 1000;
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit) == 0 && limit.rlim_cur < from + 16) {
    from = limit.rlim_cur > 16 ? limit.rlim_cur - 16 : 0;
  }
  const long high = sys::call(__NR_fcntl, fd, F_DUPFD_CLOEXEC, from);
  if (sys::failed(high)) return;
  sys::call(__NR_close, fd);
  fd = high;
}

// On a thread of the program, which may have another descriptor table, with a file of its own at that number.
struct Close {
  int fd;
  int agent_tid, agent_fd;  // whose file it must be; -1: that of the thread that has just opened it
  bool done;
};
void close_in_program(void* order) {
  auto& close = *static_cast<Close*>(order);
  if (close.agent_fd >= 0) {
    const long differs =
        sys::call(__NR_kcmp, close.agent_tid, sys::gettid(), KCMP_FILE, close.agent_fd, close.fd);
    // Without kcmp(2): at so high a number, a userfaultfd.
    uffdio_range range{guard::window.gates, kPageSize};
    const bool cannot_tell = differs == -EPERM || differs == -ENOSYS || differs == -EACCES;
    if (cannot_tell ? sys::call(__NR_ioctl, close.fd, UFFDIO_WAKE, &range) != 0 : differs != 0) return;
  }
  close.done = sys::call(__NR_close, close.fd) == 0;
}

// Threads can have descriptor tables of their own. Any address will do.
bool has_descriptor_here() {
  uffdio_range range{guard::window.gates, kPageSize};
  return sys::call(__NR_ioctl, guard::window.faults.descriptor, UFFDIO_WAKE, &range) == 0;
}

}  // namespace

const char* InThreadMemory::name() const { return fault_back_end_name(FaultBackEnd::kInThread); }

bool InThreadMemory::can_protect_ahead() const {
  return (probe_userfaultfd().features & kUffdFeatureWpUnpopulated) != 0;
}

Result<void> InThreadMemory::open_stopped(bool ahead, ThreadSlot* thread, Arena& arena) {
  long fd = -EPERM;
  stop_state.world.run_on(*thread, &open_in_program, &fd);
  if (sys::failed(fd)) {
    return make_error(ExitCode::kUnavailable, static_cast<int>(fd), "userfaultfd is not allowed here ({})",
                      errno_name(static_cast<int>(fd)));
  }
  program_fd_ = static_cast<int>(fd);
  // A pidfd of a thread needs Linux 6.9; the leader's works everywhere.
  ScopedFd process(static_cast<int>(
      sys::call(__NR_pidfd_open, thread->tid, thread->tid == this_process.pid ? 0 : O_EXCL)));
  long ours = process.valid() ? sys::call(__NR_pidfd_getfd, process.get(), program_fd_, 0) : process.get();
  if (!sys::failed(ours)) agent_fd_ = ScopedFd(static_cast<int>(ours));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (ahead) api.features |= kUffdFeatureWpUnpopulated;
  if (!sys::failed(ours)) ours = sys::call(__NR_ioctl, agent_fd_.get(), UFFDIO_API, &api);
  if (!sys::failed(ours)) return GuardedMemory::open_stopped(ahead, thread, arena);
  end_stopped(thread);
  return make_error(ExitCode::kUnavailable, static_cast<int>(ours),
                    "this kernel's userfaultfd cannot raise a signal for a write, or not be shared ({})",
                    errno_name(static_cast<int>(ours)));
}

long InThreadMemory::add(AddrRange range) {
  uffdio_register reg{};
  reg.range = {range.start.value, range.size()};
  reg.mode = UFFDIO_REGISTER_MODE_WP;
  return sys::call(__NR_ioctl, agent_fd_.get(), UFFDIO_REGISTER, &reg);
}

guard::Faults InThreadMemory::faults() const {
  constexpr int kAddressError = 2;  // BUS_ADRERR
  return {SIGBUS, kAddressError, program_fd_, &has_descriptor_here};
}

// By the descriptor in this thread's own table.
long InThreadMemory::change(AddrRange range, bool writable) const {
  const int fd = is_agent() ? agent_fd_.get() : program_fd_;
  uffdio_writeprotect wp{};
  wp.range = {range.start.value, range.size()};
  wp.mode = writable ? 0 : UFFDIO_WRITEPROTECT_MODE_WP;
  long r;
  while ((r = sys::call(__NR_ioctl, fd, UFFDIO_WRITEPROTECT, &wp)) == -EAGAIN) sys::call(__NR_sched_yield);
  return r;
}

long InThreadMemory::unprotect(AddrRange range) {
  const long r = change(range, true);
  if (r == 0 || range.size() <= kPageSize) return r;
  // The kernel stops at the first part that is not registered.
  constexpr uint64_t kPiece = 64 << 10;
  for (Addr at = range.start; at < range.end; at = at + kPiece) {
    const AddrRange piece{at, range.end - at < kPiece ? range.end : at + kPiece};
    if (change(piece, true) == 0) continue;
    for (Addr page = piece.start; page < piece.end; page = page + kPageSize)
      change({page, page + kPageSize}, true);
  }
  return r;
}

void InThreadMemory::remove(AddrRange range) {
  uffdio_range all{range.start.value, range.size()};
  sys::call(__NR_ioctl, agent_fd_.get(), UFFDIO_UNREGISTER, &all);
}

void InThreadMemory::end_stopped(ThreadSlot* thread) {
  // The thread that opened it may be gone, and its table with it.
  Close close{program_fd_, sys::gettid(), agent_fd_.get(), program_fd_ < 0};
  for (ThreadSlot* t = thread; t != nullptr && !close.done; t = t->next)
    stop_state.world.run_on(*t, &close_in_program, &close);
  program_fd_ = -1;
  agent_fd_.reset();
  GuardedMemory::end_stopped(thread);
}

}  // namespace ckpt
