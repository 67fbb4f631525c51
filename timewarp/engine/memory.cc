#include "timewarp/engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace ckpt::timewarp {

namespace {
constexpr size_t kLine = 64, kSmallRegion = 64 << 10, kLargeRegion = 8 << 20, kLargePage = 2 << 20;
// Blocks taken from a region at a time.
constexpr size_t kFresh = 16;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
}  // namespace

Regions::~Regions() {
  for (const Mapping& m : mappings_) munmap(m.at, m.bytes);
}

std::byte* Regions::map(size_t bytes) {
  const size_t want = rounded(bytes, page_kib_ == 4 ? 4096 : kLargePage);
  void* at = MAP_FAILED;
  size_t mapped = want;
  if (page_kib_ == 1048576) {
    mapped = rounded(bytes, size_t{1} << 30);
    at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (30 << MAP_HUGE_SHIFT), -1, 0);
  }
  if (at == MAP_FAILED) {
    // Longer by a page, so that a large page can begin at its own boundary.
    mapped = want + (page_kib_ == 4 ? 0 : kLargePage);
    at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    if (page_kib_ == 4) {
      madvise(at, mapped, MADV_NOHUGEPAGE);
    } else {
      // A hint: a kernel without transparent huge pages goes on with small ones.
      madvise(at, mapped, MADV_HUGEPAGE);
    }
  }
  mappings_.push_back({static_cast<std::byte*>(at), mapped});
  auto address = reinterpret_cast<uintptr_t>(at);
  if (page_kib_ != 4) address = rounded(address, kLargePage);
  return reinterpret_cast<std::byte*>(address);
}

std::byte* Regions::take(size_t bytes) {
  bytes = rounded(bytes, kLine);
  if (bytes > left_) {
    const size_t region =
        std::max(bytes, taken_ < kLargeRegion && page_kib_ == 4 ? kSmallRegion : kLargeRegion);
    next_ = map(region);
    left_ = region;
  }
  std::byte* block = next_;
  next_ += bytes;
  left_ -= bytes;
  taken_ += bytes;
  return block;
}

void* Pool::fresh() {
  const size_t n = bytes_ > (64 << 10) ? 1 : kFresh;
  std::byte* blocks = regions_->take(bytes_ * n);
  for (size_t i = n; i-- > 1;) free_.push_back(blocks + i * bytes_);
  return blocks;
}

void Pool::hand_over(size_t n, std::vector<void*>& to) {
  n = std::min(n, free_.size());
  to.insert(to.end(), free_.begin(), free_.begin() + static_cast<ptrdiff_t>(n));
  free_.erase(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(n));
}

}  // namespace ckpt::timewarp
