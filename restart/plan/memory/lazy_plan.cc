#include "restart/plan/memory/lazy_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "base/machine/kernel_caps.h"
#include "base/raii_fd.h"
#include "image/read/saved_memory.h"

namespace ckpt {
namespace {

constexpr uint64_t kSmall = 1u << 20;       // bytes in the image: not worth a fault
constexpr uint64_t kMostSmall = 32u << 20;  // of all small mappings together

// Without these a page that the program gave back would come back, or one that it moved or gave to a
// child would be zero.
constexpr uint64_t kEvents =
    UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;

// Calls use(mapping, piece) for all pieces, cut at the borders of mappings.
template <typename Use>
void each_piece(const ImageChain& image, Use&& use) {
  const auto& mappings = image.meta().mappings;
  size_t m = 0;
  for (const MemoryPiece& p : image.pieces()) {
    for (Addr at = p.address, end = at + p.length; at < end;) {
      while (mappings[m].record.end <= at.value) ++m;
      const Addr to = std::min(end, Addr{mappings[m].record.end});
      const auto skipped = static_cast<uint32_t>(at - p.address);
      use(m, MemoryPiece{at, static_cast<uint32_t>(to - at), p.into + skipped, p.image, p.extent});
      at = to;
    }
  }
}

// Bytes in the image for each mapping.
std::vector<uint64_t> stored_bytes(const ImageChain& image) {
  std::vector<uint64_t> bytes(image.meta().mappings.size(), 0);
  each_piece(image, [&](size_t m, const MemoryPiece& p) { bytes[m] += p.length; });
  return bytes;
}

bool may_be_lazy(const ParsedMapping& m) {
  // Locked memory is there by definition, and stacks that grow have their guard to mind. A child would get a
  // page of the image where it must get zeros. Droppable memory takes no userfaultfd.
  constexpr uint32_t kNot =
      kMapHugeTlb | kMapGrowsDown | kMapLocked | kMapLockOnFault | kMapWipeOnFork | kMapDroppable;
  return m.record.kind == static_cast<uint32_t>(MappingKind::kAnonymous) && (m.record.flags & kNot) == 0;
}

// Whole mappings: what is watched in part is two mappings to the kernel, and mremap(2) of both is EFAULT.
std::vector<AddrRange> whole_mappings(const ImageChain& image, const LazyPlan& plan) {
  std::vector<AddrRange> ranges;
  for (size_t m = 0; m < plan.mappings.size(); ++m) {
    const MappingRecord& r = image.meta().mappings[m].record;
    if (plan.lazy(m)) ranges.push_back({Addr{r.start}, Addr{r.end}});
  }
  return ranges;
}

// The kernel reads and writes these when a thread ends, and does not wait for a page then: the thread's
// id that pthread_join() waits for, and the robust mutexes that it holds.
void add_robust_list(const ThreadRecord& thread, SavedMemory& memory, std::vector<Addr>& first) {
  if (thread.robust_list == 0) return;
  struct {
    uint64_t next;
    int64_t futex_offset;
    uint64_t pending;
  } head{};
  if (!memory.read(Addr{thread.robust_list}, std::as_writable_bytes(std::span(&head, 1))).ok()) return;
  constexpr int kKernelLimit = 2048;  // ROBUST_LIST_LIMIT
  auto add = [&](uint64_t entry) {
    entry &= ~uint64_t{1};  // the mark of a mutex with priority inheritance
    first.push_back({entry});
    first.push_back({entry + static_cast<uint64_t>(head.futex_offset)});
    return entry;
  };
  first.push_back({thread.robust_list});
  if (head.pending != 0) add(head.pending);
  uint64_t entry = head.next;
  for (int i = 0; i < kKernelLimit && entry != 0 && (entry & ~uint64_t{1}) != thread.robust_list; ++i) {
    uint64_t at = add(entry);
    if (!memory.read(Addr{at}, std::as_writable_bytes(std::span(&entry, 1))).ok()) return;
  }
}

// The kernel's words, and what every thread touches on its way back into the program: a fault less each.
std::vector<Addr> needed_first(const ImageChain& image) {
  std::vector<Addr> first;
  SavedMemory memory(image);
  for (const ParsedThread& t : image.meta().threads) {
    const ThreadRecord& r = t.record;
    for (uint64_t at :
         {r.clear_child_tid, r.clear_child_tid + 3, r.fs_base, r.rseq, r.slot, r.frame, r.rsp}) {
      if (at > 3) first.push_back({at});
    }
    add_robust_list(r, memory, first);
  }
  first.push_back({image.meta().process.record.restart_state});
  return first;
}

}  // namespace

LazyPlan make_lazy_plan(const ImageChain& image) {
  LazyPlan plan;
  const auto& mappings = image.meta().mappings;
  const std::vector<uint64_t> bytes = stored_bytes(image);
  plan.mappings.assign(mappings.size(), false);
  uint64_t small = 0;
  for (size_t m = 0; m < mappings.size(); ++m) {
    if (bytes[m] == 0 || !may_be_lazy(mappings[m])) continue;
    if (bytes[m] < kSmall && small + bytes[m] <= kMostSmall) {
      small += bytes[m];
      continue;
    }
    plan.mappings[m] = true;
    plan.bytes += bytes[m];
  }
  if (!plan.any()) return plan;
  plan.registered = whole_mappings(image, plan);
  plan.first = needed_first(image);
  return plan;
}

std::vector<MemoryPiece> lazy_pieces(const ImageChain& image, const LazyPlan& plan) {
  std::vector<MemoryPiece> pieces;
  pieces.reserve(image.pieces().size());
  each_piece(image, [&](size_t m, const MemoryPiece& p) {
    if (plan.lazy(m)) pieces.push_back(p);
  });
  return pieces;
}

Result<int> open_lazy_userfaultfd() {
  UserfaultfdProbe probe;
  ScopedFd fd(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, &probe));
  if (!fd.valid() || probe.access != UserfaultfdAccess::kFull) {
    return make_error(ExitCode::kUnavailable, probe.syscall_error,
                      "full userfaultfd is not allowed here ({}); `ckpt check` says how to change that",
                      errno_name(probe.syscall_error));
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kEvents;
  if (long r = sys::call(__NR_ioctl, fd.get(), UFFDIO_API, &api); r != 0) {
    return make_error(ExitCode::kUnavailable, static_cast<int>(r),
                      "userfaultfd tells nothing of forks here ({}), which needs CAP_SYS_PTRACE",
                      errno_name(static_cast<int>(r)));
  }
  return fd.release();
}

Result<void> probe_lazy() {
  auto fd = open_lazy_userfaultfd();
  if (!fd.ok()) return fd.error();
  ScopedFd closed(*fd);
  return {};
}

}  // namespace ckpt
