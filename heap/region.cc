#include "heap/region.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/memory/page_runs.h"
#include "base/units.h"
#include "base/preload_rules.h"

constinit ckpt::HeapInterface ckpt_heap_v1;

namespace ckpt::heap {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr uint64_t kSmallestRegion = 4 << 20, kLargestRegion = 1ull << 44;
// Stale pages: so many may always stay, and beyond that a share of what is used.
constexpr uint64_t kAlwaysStale = 32 << 20, kStaleShare = 8;

constinit std::atomic<uint64_t> stale_pages{0}, used_bytes{0};
constinit std::atomic<bool> wants_huge_pages{false};

uint64_t at(const void* p) { return reinterpret_cast<uint64_t>(p); }
void* pointer(uint64_t a) { return reinterpret_cast<void*>(a); }
uint64_t round_up(uint64_t n, uint64_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

// size bytes at an address that is a multiple of alignment; 0 if there are none.
uint64_t map_aligned(uint64_t size, uint64_t alignment, int protection) {
  const uint64_t more = size + alignment - kPageSize;
  if (more < size) return 0;
  void* got = mmap(nullptr, more, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return 0;
  const uint64_t start = round_up(at(got), alignment), end = start + size;
  if (start != at(got)) munmap(got, start - at(got));
  if (end != at(got) + more) munmap(pointer(end), at(got) + more - end);
  // A kernel without them (EINVAL) has small ones.
  if (wants_huge_pages.load(std::memory_order_relaxed) && size >= kHugePage)
    madvise(pointer(start), size, MADV_HUGEPAGE);
  return start;
}

// As much as the machine has memory. Where address space is limited, a small part of it: what is reserved and
// not used is missing for stacks and libraries.
uint64_t usual_size() {
  uint64_t size = 1ull << 30;
  struct sysinfo machine {};
  if (sysinfo(&machine) == 0) size = std::bit_ceil(uint64_t{machine.totalram} * machine.mem_unit);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur / 16) {
    size = std::bit_floor(limit.rlim_cur / 16);
  }
  return size < kLargestRegion ? size : kLargestRegion;
}

// A region with room for size bytes, in use by nobody yet; nullptr if there is no address space for it, or so
// many are more than a region has.
HeapRegion* reserve(uint64_t size, uint64_t alignment) {
  const uint64_t needed = size + size / 1024 + alignment + kHugePage;
  if (needed < size) return nullptr;
  for (uint64_t bytes = usual_size(); bytes >= needed && bytes >= kSmallestRegion; bytes /= 2) {
    const uint64_t start = map_aligned(bytes, kHugePage, PROT_NONE);
    if (start == 0) continue;
    // A bit for each page, those of the bits included: simple, and 1/32768.
    const uint64_t bits = start + round_up(sizeof(HeapRegion), 64);
    const uint64_t pages = round_up(bits + bytes / kPageSize / 8, kPageSize);
    if (mprotect(pointer(start), pages - start, PROT_READ | PROT_WRITE) != 0) {
      munmap(pointer(start), bytes);
      return nullptr;
    }
    auto* region = new (pointer(start)) HeapRegion;
    region->pages_start = pages;
    region->pages_end = start + bytes;
    region->used_end.store(pages, std::memory_order_relaxed);
    region->stale = reinterpret_cast<std::atomic<uint64_t>*>(bits);
    return region;
  }
  return nullptr;
}

// The next size bytes of the region; 0 if there are not so many.
uint64_t take(HeapRegion& region, uint64_t wanted, uint64_t size, uint64_t alignment) {
  uint64_t end = region.used_end.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t start = wanted != 0 ? end : round_up(end, alignment);
    if ((wanted != 0 && wanted != end) || start > region.pages_end || region.pages_end - start < size)
      return 0;
    // relaxed: who takes memory tells nobody by this word; the agent reads it when all threads stand.
    if (!region.used_end.compare_exchange_weak(end, start + size, std::memory_order_relaxed)) continue;
    // From the end of what was used before: the mapping stays one.
    if (mprotect(pointer(end), start + size - end, PROT_READ | PROT_WRITE) == 0) return start;
    // Back, unless somebody has taken what follows: then it is lost, and never read.
    uint64_t now = start + size;
    region.used_end.compare_exchange_strong(now, end, std::memory_order_relaxed);
    return 0;
  }
}

// Calls use(word, mask, first page of the word) for the bits of the pages of [start, start + size).
template <typename Use>
void each_word(HeapRegion& region, uint64_t start, uint64_t size, Use&& use) {
  uint64_t page = (start - region.pages_start) / kPageSize;
  const uint64_t end = page + size / kPageSize;
  while (page < end) {
    const uint64_t first = page % 64, count = std::min<uint64_t>(64 - first, end - page);
    const uint64_t mask = first_pages(count) << first;
    use(region.stale[page / 64], mask, region.pages_start + (page - first) * kPageSize);
    page += count;
  }
}

}  // namespace

HeapRegion* region_of(const void* p) {
  for (auto& slot : ckpt_heap_v1.regions) {
    HeapRegion* region = slot.load(std::memory_order_acquire);
    if (region == nullptr) return nullptr;
    if (at(p) >= region->pages_start && at(p) < region->pages_end) return region;
  }
  return nullptr;
}

bool may_merge(const void* a, const void* b) { return region_of(a) == region_of(b); }

void ask_for_huge_pages() { wants_huge_pages.store(true, std::memory_order_relaxed); }

uint64_t stale_bytes() { return stale_pages.load(std::memory_order_relaxed) * kPageSize; }

void* extend(void* where, size_t size, size_t alignment) {
  for (auto& slot : ckpt_heap_v1.regions) {
    // acquire, with the release of who made the region: its fields are there.
    HeapRegion* region = slot.load(std::memory_order_acquire);
    if (region == nullptr) {
      if (where != nullptr) return nullptr;
      HeapRegion* mine = reserve(size, alignment);
      if (mine == nullptr) break;
      if (slot.compare_exchange_strong(region, mine, std::memory_order_acq_rel))
        region = mine;
      else
        munmap(mine, mine->pages_end - at(mine));
    }
    if (const uint64_t start = take(*region, at(where), size, alignment)) {
      used_bytes.fetch_add(size, std::memory_order_relaxed);
      return pointer(start);
    }
  }
  if (where != nullptr) return nullptr;
  const uint64_t start = map_aligned(size, std::max<uint64_t>(alignment, kPageSize), PROT_READ | PROT_WRITE);
  if (start == 0) return nullptr;
  ckpt_heap_v1.bytes_outside.fetch_add(size, std::memory_order_relaxed);
  return pointer(start);
}

void commit(void* start, size_t size) {
  HeapRegion* region = region_of(start);
  if (region == nullptr) return;
  each_word(*region, at(start), size, [](std::atomic<uint64_t>& word, uint64_t mask, uint64_t base) {
    // relaxed: the bits of our pages are changed by nobody else, and nobody else may use the pages.
    if ((word.load(std::memory_order_relaxed) & mask) == 0) return;
    // The bits first: a page that has been written to must be in the image. seq_cst, as is the other change,
    // keeps the compiler from moving a write to the page before it; a stop between two instructions finds
    // them in this order.
    const uint64_t stale = word.fetch_and(~mask) & mask;
    stale_pages.fetch_sub(static_cast<uint64_t>(std::popcount(stale)), std::memory_order_relaxed);
    for (PageRun run : PageRuns(stale)) std::memset(pointer(base + run.offset()), 0, run.bytes());
  });
}

bool decommit(void* start, size_t size) {
  HeapRegion* region = region_of(start);
  const uint64_t most = kAlwaysStale + used_bytes.load(std::memory_order_relaxed) / kStaleShare;
  if (region == nullptr || stale_bytes() + size > most) return madvise(start, size, MADV_DONTNEED) == 0;
  each_word(*region, at(start), size, [](std::atomic<uint64_t>& word, uint64_t mask, uint64_t) {
    const uint64_t more = mask & ~word.fetch_or(mask);
    stale_pages.fetch_add(static_cast<uint64_t>(std::popcount(more)), std::memory_order_relaxed);
  });
  return true;
}

}  // namespace ckpt::heap
