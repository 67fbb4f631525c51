#include "libckpt_rt/protect/spare_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

void unmap(AddrRange range) {
  if (!range.empty()) sys::call(__NR_munmap, range.start.value, range.size());
}

}  // namespace

SpareMemory::Block SpareMemory::take(Use use, uint64_t least, uint64_t most) {
  const Block block = std::exchange(blocks_[static_cast<uint64_t>(use)], {});
  const bool fits = block.range.size() >= least && block.range.size() <= most;
  if (use == Use::kLists) {
    if (fits) clean();
    to_clean_ = {};
  }
  if (fits) return block;
  unmap(block.range);
  return {};
}

void SpareMemory::give(Use use, Block block) {
  Block& place = blocks_[static_cast<uint64_t>(use)];
  unmap(place.range);
  block.touched.end = std::min(block.touched.start + kMostTouched, block.touched.end.page_up());
  const AddrRange rest{block.touched.end, block.range.end};
  // Memory that is locked (mlockall) keeps its pages, and with them their contents.
  const bool emptied =
      rest.empty() || sys::call(__NR_madvise, rest.start.value, rest.size(), MADV_DONTNEED) == 0;
  if (!emptied) unmap(block.range);
  place = emptied ? block : Block{};
  if (use == Use::kLists) to_clean_ = place.touched;
}

void SpareMemory::clean() {
  if (to_clean_.empty()) return;
  std::memset(to_clean_.start.as<void>(), 0, to_clean_.size());
  to_clean_ = {};
}

void SpareMemory::release() {
  for (Block& block : blocks_) unmap(std::exchange(block, {}).range);
  to_clean_ = {};
}

}  // namespace ckpt
