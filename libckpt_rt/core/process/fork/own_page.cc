#include "libckpt_rt/core/process/fork/own_page.h"

#include <sys/mman.h>

#include "base/memory/fork_path.h"
#include "base/memory/own_place.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_page {

namespace {

// Stands in until reserve(): is_new_child() is false.
CKPT_FORK_DATA constinit OwnPage first{{1}, {}, {0}, {}, {0}, {0}, {0}};
constinit AddrRange all{};
CKPT_FORK_DATA constinit bool wiped = false;

constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Where it was; if something is there, far from the program's holes. The place is a hint, as in map_own().
long map_again(size_t bytes) {
  const auto was = static_cast<long>(all.start.value);
  const long at = sys::call(__NR_mmap, was, bytes, kProtection, kFlags, -1L, 0L);
  if (sys::failed(at) || at == was) return at;
  sys::call(__NR_munmap, at, bytes);
  return map_own(bytes, kProtection, kFlags);
}

}  // namespace

CKPT_FORK_DATA constinit OwnPage* page = &first;

CKPT_START_PATH bool reserve(bool with_engine, Where where) {
  const size_t count = with_engine ? 4 : 3;
  const size_t bytes = kPageSize + count * RawThread::kBlockBytes;
  const long at = where == Where::kWhereItWas ? map_again(bytes)
                                              : sys::call(__NR_mmap, 0L, bytes, kProtection, kFlags, -1L, 0L);
  if (sys::failed(at)) return false;
  all = {Addr{static_cast<uint64_t>(at)}, Addr{static_cast<uint64_t>(at)} + bytes};
  wiped = !sys::failed(sys::call(__NR_madvise, at, bytes, long{MADV_WIPEONFORK}));
  for (size_t i = 0; i < count; ++i) kOwnThreads[i]->use(all.start + kPageSize + i * RawThread::kBlockBytes);
  auto* fresh = all.start.as<OwnPage>();
  fresh->pid.store(sys::getpid(), std::memory_order_relaxed);
  page = fresh;
  return true;
}

AddrRange range() { return all; }
CKPT_FORK_PATH bool is_wiped_on_fork() { return wiped; }

ScopedUnwipedBlock::ScopedUnwipedBlock(AddrRange block) : block_(block) {
  if (wiped) sys::call(__NR_madvise, block_.start.value, block_.size(), long{MADV_KEEPONFORK});
}

ScopedUnwipedBlock::~ScopedUnwipedBlock() {
  if (wiped) sys::call(__NR_madvise, block_.start.value, block_.size(), long{MADV_WIPEONFORK});
}

Place place() { return {page, all, wiped}; }

void set_place(const Place& place) {
  page = place.page;
  all = place.range;
  wiped = place.wiped;
}

}  // namespace ckpt::own_page
