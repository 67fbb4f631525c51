#include "libckpt_rt/capture/memory/heap_extents.h"

#include <algorithm>

#include "base/memory/page_runs.h"
#include "base/protocol/heap_protocol.h"
#include "libckpt_rt/capture/advice/still_memory.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" __attribute__((weak)) ckpt::HeapInterface ckpt_heap_v1;

namespace ckpt::heap_extents {

namespace {

constexpr size_t kWords = 1024;  // bits read at once: of 256 MiB

bool add(AddrRange run, ArenaVector<AddrRange>& free) {
  if (!free.empty() && free.back().end == run.start) {
    free.back().end = run.end;
    return true;
  }
  return free.push_back(run);
}

// A region that cannot be read is not free: the program has unmapped it.
bool collect_of(const HeapRegion& region, StillMemory& memory, uint64_t* words,
                ArenaVector<AddrRange>& free) {
  const uint64_t used = region.used_end.load(std::memory_order_relaxed);
  const uint64_t end = (used - region.pages_start) / kPageSize;  // pages
  const Addr bits = Addr::of(region.stale);
  for (uint64_t first = 0; first < end; first += kWords * 64) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(kWords, (end - first + 63) / 64));
    if (memory.read(reinterpret_cast<std::byte*>(words), bits + first / 8, count * sizeof(uint64_t), true) !=
        0)
      return true;
    for (size_t i = 0; i < count; ++i) {
      const Addr base{region.pages_start + (first + i * 64) * kPageSize};
      for (PageRun run : PageRuns(words[i])) {
        if (!add(run.at(base), free)) return false;
      }
    }
  }
  return true;
}

}  // namespace

bool preloaded() { return &ckpt_heap_v1 != nullptr; }

uint64_t bytes_outside() {
  return preloaded() ? ckpt_heap_v1.bytes_outside.load(std::memory_order_relaxed) : 0;
}

bool collect_free(StillMemory& memory, Arena& arena, ArenaVector<AddrRange>& free) {
  if (!preloaded()) return true;
  HeapRegion* regions[HeapInterface::kMostRegions];
  size_t count = 0;
  for (auto& slot : ckpt_heap_v1.regions) {
    HeapRegion* region = slot.load(std::memory_order_acquire);
    if (region == nullptr) break;
    regions[count++] = region;
  }
  if (count == 0) return true;
  auto* words = static_cast<uint64_t*>(arena.allocate(kWords * sizeof(uint64_t)));
  if (words == nullptr) return false;
  std::sort(regions, regions + count);
  for (size_t i = 0; i < count; ++i) {
    alignas(HeapRegion) std::byte bytes[sizeof(HeapRegion)];
    if (memory.read(bytes, Addr::of(regions[i]), sizeof(bytes), true) != 0) continue;
    const auto& read = *reinterpret_cast<const HeapRegion*>(bytes);
    if (!collect_of(read, memory, words, free)) return false;
  }
  return true;
}

bool leave_out(std::span<const AddrRange> free, ArenaVector<AddrRange>& runs, size_t first) {
  if (free.empty()) return true;
  const size_t before = runs.size();
  auto ends_before = [](const AddrRange& r, Addr a) { return r.end <= a; };
  // The parts that stay go behind the runs, then into their place.
  for (size_t i = first; i < before; ++i) {
    AddrRange run = runs[i];
    auto f = std::lower_bound(free.begin(), free.end(), run.start, ends_before);
    for (; f != free.end() && f->start < run.end; ++f) {
      const AddrRange used{run.start, f->start};
      if (!used.empty() && !runs.push_back(used)) return false;
      run.start = f->end;
    }
    if (!run.empty() && !runs.push_back(run)) return false;
  }
  const size_t left = runs.size() - before;
  std::copy(runs.begin() + before, runs.end(), runs.begin() + first);
  runs.truncate(first + left);
  return true;
}

}  // namespace ckpt::heap_extents
