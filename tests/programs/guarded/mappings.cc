// Mappings that change their size without rest: what is registered is no longer what is there.
#include <sys/mman.h>

#include <iterator>

#include "tests/programs/guarded/guarded.h"

namespace guarded {

using namespace victim;

namespace {

constexpr uint64_t kLeast = 8, kMost = 64;  // pages

// Far from where the kernel puts mappings that ask for no place, so nothing comes to lie behind an area.
std::byte* address_of(uint64_t i) { return reinterpret_cast<std::byte*>(0x100000000000 + (i << 24)); }

struct Area {
  std::byte* start;
  uint64_t pages;
  void write_last(uint64_t n) {
    word_at(start + (pages - 1) * kPage).store(mix(n), std::memory_order_relaxed);
  }
  uint64_t last() const { return word_at(start + (pages - 1) * kPage).load(std::memory_order_relaxed); }
};

}  // namespace

// The areas grow a page at a time where they are, as one mapping each. A range that is taken from
// userfaultfd, and that had grown since it was registered, could cut it in two. mremap(2) of it as one would
// then fail with EFAULT.
std::string grows(uint64_t iterations) {
  Area areas[16];
  uint64_t number = 0;
  for (Area& area : areas) {
    area = {address_of(number++), kLeast};
    require_call(mmap(area.start, kLeast * kPage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == area.start,
                 "mmap");
    area.write_last(kLeast);
  }
  for (uint64_t n = 0; n < iterations; ++n) {
    Area& area = areas[n % std::size(areas)];
    require(area.last() == mix(area.pages), "grows: the last page of {} holds {:x}", area.pages, area.last());
    const uint64_t pages = area.pages < kMost ? area.pages + 1 : kLeast;
    require_call(mremap(area.start, area.pages * kPage, pages * kPage, 0) == area.start, "mremap");
    area.pages = pages;
    area.write_last(pages);
  }
  return fmt::format("{} changes of size", iterations);
}

}  // namespace guarded
