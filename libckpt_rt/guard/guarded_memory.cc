#include "libckpt_rt/guard/guarded_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/machine/kernel_caps.h"
#include "base/sys.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/threads/own_threads.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kBusAddressError = 2;  // BUS_ADRERR
constexpr int kSegvAccessError = 2;  // SEGV_ACCERR

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

Result<void> GuardedMemory::open_userfaultfd_of(ThreadSlot* thread, bool ahead) {
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
  if (!sys::failed(ours)) return {};
  end_stopped(thread);
  return make_error(ExitCode::kUnavailable, static_cast<int>(ours),
                    "this kernel's userfaultfd cannot raise a signal for a write, or not be shared ({})",
                    errno_name(static_cast<int>(ours)));
}

bool GuardedMemory::can_protect_ahead(FaultBackEnd back_end) {
  return back_end == FaultBackEnd::kInThread &&
         (probe_userfaultfd().features & kUffdFeatureWpUnpopulated) != 0;
}

Result<void> GuardedMemory::open_stopped(FaultBackEnd back_end, bool ahead, ThreadSlot* thread,
                                         Arena& arena) {
  back_end_ = back_end;
  parts_ = ArenaVector<Part>(arena);
  open_pages_ = ArenaVector<Addr>(arena);
  if (back_end == FaultBackEnd::kInThread) CKPT_TRY(open_userfaultfd_of(thread, ahead));
  open_ = true;
  return {};
}

void GuardedMemory::leave_out(std::span<Mapping> map) {
  for (Mapping& m : map) {
    if (m.handling == Handling::kTracked && (m.shared || (m.prot & PROT_READ) == 0))
      m.handling = Handling::kEager;
  }
}

Result<void> GuardedMemory::add_stopped(std::span<Mapping> map) {
  leave_out(map);
  for (Mapping& m : map) {
    if (m.handling != Handling::kTracked) continue;
    if (back_end_ == FaultBackEnd::kInThread && add(m.range) != 0) m.handling = Handling::kEager;
    if (back_end_ == FaultBackEnd::kMprotect && !parts_.push_back({m.range, m.prot}))
      return make_error(ExitCode::kInternal, ENOMEM,
                        "no address space left for the list of mappings; raise the limit (ulimit -v)");
  }
  return {};
}

long GuardedMemory::add(AddrRange range) {
  uffdio_register reg{};
  reg.range = {range.start.value, range.size()};
  reg.mode = UFFDIO_REGISTER_MODE_WP;
  return sys::call(__NR_ioctl, agent_fd_.get(), UFFDIO_REGISTER, &reg);
}

void GuardedMemory::each_busy(void (*visit)(void*, AddrRange), void* context) {
  for (Addr page : open_pages_) visit(context, {page, page + kPageSize});
  const uint32_t count = guard::window.next_record.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& record =
        *reinterpret_cast<const guard::ThreadRecord*>(guard::window.blocks + i * guard::kBlockBytes);
    const uint32_t n = record.busy_count.load(std::memory_order_relaxed);
    for (uint32_t j = 0; j < n; ++j) visit(context, record.busy[j]);
  }
}

bool GuardedMemory::has_room_for(size_t runs, size_t mappings) const {
  if (!cuts_mappings()) return true;
  char text[32] = {};
  uint64_t most = 0;
  if (read_small_file("/proc/sys/vm/max_map_count", text, sizeof(text)) <= 0) return runs < 16384;
  for (const char* c = text; *c >= '0' && *c <= '9'; ++c) most = most * 10 + static_cast<uint64_t>(*c - '0');
  // Each piece that is given back may cut one in three.
  return mappings + 2 * runs < most / 2;
}

guard::Faults GuardedMemory::faults() const {
  if (back_end_ == FaultBackEnd::kMprotect) return {SIGSEGV, kSegvAccessError, -1, [] { return true; }};
  return {SIGBUS, kBusAddressError, program_fd_, &has_descriptor_here};
}

// By mprotect(2) in one mapping, or by the descriptor in this thread's own table.
long GuardedMemory::change(AddrRange range, bool writable) const {
  if (back_end_ == FaultBackEnd::kMprotect) {
    auto after = [](Addr a, const Part& p) { return a < p.range.start; };
    const Part* part = std::upper_bound(parts_.begin(), parts_.end(), range.start, after);
    if (part == parts_.begin() || !(--part)->range.contains(range.start)) return -ENOENT;
    if ((part->prot & PROT_WRITE) == 0) return 0;
    return sys::call(__NR_mprotect, range.start.value, range.size(),
                     writable ? part->prot : part->prot & ~uint32_t{PROT_WRITE});
  }
  const bool agent = own_threads.agent.block().contains(Addr::of(__builtin_frame_address(0)));
  uffdio_writeprotect wp{};
  wp.range = {range.start.value, range.size()};
  wp.mode = writable ? 0 : UFFDIO_WRITEPROTECT_MODE_WP;
  long r;
  while ((r = sys::call(__NR_ioctl, agent ? agent_fd_.get() : program_fd_, UFFDIO_WRITEPROTECT, &wp)) ==
         -EAGAIN) {
    sys::call(__NR_sched_yield);
  }
  return r;
}

long GuardedMemory::protect(AddrRange range) {
  protections_.fetch_add(1, std::memory_order_relaxed);
  const long r = change(range, false);
  if (r != 0) unprotect(range);
  return r;
}

long GuardedMemory::unprotect(AddrRange range) {
  const long r = change(range, true);
  if (r == 0 || range.size() <= kPageSize || back_end_ != FaultBackEnd::kInThread) return r;
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

long GuardedMemory::unprotect_many(AddrRange range) {
  const long r = unprotect(range);
  return r == 0 && !is_mapped(range) ? -ENOENT : r;
}

long GuardedMemory::read(std::byte* to, Addr from, size_t bytes, bool) {
  const bool agent = own_threads.agent.block().contains(Addr::of(__builtin_frame_address(0)));
  return (agent ? copy_.copy(to, from, bytes) : KernelCopy::read(to, from, bytes)) ? 0 : -EFAULT;
}

// Only the agent reads several pieces at once, for it copies in order.
long GuardedMemory::read_pieces(std::span<const CopyPiece> pieces, bool readable) {
  return copy_.copy(pieces) ? 0 : ProgramMemory::read_pieces(pieces, readable);
}

void GuardedMemory::remove(AddrRange range) {
  uffdio_range all{range.start.value, range.size()};
  sys::call(__NR_ioctl, agent_fd_.get(), UFFDIO_UNREGISTER, &all);
}

void GuardedMemory::end_stopped(ThreadSlot* thread) {
  // The thread that opened it may be gone, and its table with it.
  Close close{program_fd_, sys::gettid(), agent_fd_.get(), program_fd_ < 0};
  for (; thread != nullptr && !close.done; thread = thread->next)
    stop_state.world.run_on(*thread, &close_in_program, &close);
  program_fd_ = -1;
  agent_fd_.reset();
  open_ = false;
}

}  // namespace ckpt
