#include "libckpt_rt/protect/watch.h"

#include <sys/mman.h>

#include <new>
#include "base/memory/own_place.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
constinit Watch* kept = nullptr;  // the agent's alone
}

bool Watch::is_kept() { return kept != nullptr; }
void Watch::forget_kept() { kept = nullptr; }
void Watch::become_kept() { kept = this; }

Watch* Watch::take() {
  if (Watch* watch = kept) {
    kept = nullptr;
    return watch;
  }
  const long p = map_own(sizeof(Watch), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  return sys::failed(p) ? nullptr : new (reinterpret_cast<void*>(p)) Watch;
}

void Watch::end_kept() {
  if (kept != nullptr) take()->end();
}

void Watch::clean_spare() {
  if (kept != nullptr) kept->spare.clean();
}

void Watch::release_spare() {
  if (kept != nullptr) kept->spare.release();
}

void Watch::end() {
  protection.finish();
  this->~Watch();
  sys::call(__NR_munmap, this, sizeof(Watch));
}

Result<void> Watch::begin(RawThread& handler, CopyCounters& counters, uint64_t segment_bytes,
                          uint64_t list_bytes) {
  Arena& next = arenas_[++checkpoints_ % 2];
  // Segments that are there, though their memory may be gone, take room as well.
  list_bytes += table.size() * 3 * (sizeof(Segment) + 3 * sizeof(uint32_t));
  if (!next.reserve(list_bytes)) return no_memory_for_segments();
  if (is_renewed()) {
    protection.count_into(counters);
    return {};
  }
  if (!scratch_.reserve(128 << 10)) return no_memory_for_segments();
  CKPT_TRY(pages_.open(scratch_));
  CKPT_TRY(protection.open());
  CKPT_TRY(arming.prepare(next, segment_bytes));
  CKPT_TRY(protection.start(handler, arming, counters, pages_.descriptor()));
  ArenaVector<AddrRange> runs(next);
  can_be_kept_ = protection.can_protect_ahead() && pages_.scan_protected(scratch_.range(), runs).ok();
  return {};
}

Result<void> Watch::renew(std::span<const Mapping> map, bool full) {
  return arming.renew(arenas_[checkpoints_ % 2], map, full);
}

Result<void> Watch::resume() {
  WriteProtection::Serving serving(protection);
  CKPT_TRY(arming.resume());
  protection.serve(arming);
  return {};
}

void Watch::own_ranges(ArenaVector<AddrRange>& own) const {
  const Addr self = Addr::of(this);
  for (AddrRange r :
       {AddrRange{self, (self + sizeof(*this)).page_up()}, arenas_[0].range(), arenas_[1].range(),
        scratch_.range(), protection.own_range(), spare.range(SpareMemory::Use::kLists),
        spare.range(SpareMemory::Use::kBuffers), spare.range(SpareMemory::Use::kEagerCopies)}) {
    if (!r.empty() && !own.push_back(r)) return;
  }
}

}  // namespace ckpt
