// Runs of pages in a mask of 64: bit i is page i behind some base.
//
//   for (PageRun run : PageRuns(mask)) use(run.at(base));
//
// Owner:     base. Header only, no state. Callers: any thread, in the victim too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace ckpt {

// The mask of the first `count` pages; all of them for 64 and more.
constexpr uint64_t first_pages(uint64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

struct PageRun {
  uint32_t first, count;  // pages; count is never 0

  constexpr uint64_t offset() const { return first * kPageSize; }  // bytes
  constexpr uint64_t bytes() const { return count * kPageSize; }
  constexpr AddrRange at(Addr base) const { return {base + offset(), base + (offset() + bytes())}; }
};

// From the lowest page on.
class PageRuns {
 public:
  struct End {};
  class Iterator {
   public:
    constexpr explicit Iterator(uint64_t left) : left_(left) {}
    constexpr PageRun operator*() const {
      const int first = std::countr_zero(left_);
      return {static_cast<uint32_t>(first), static_cast<uint32_t>(std::countr_one(left_ >> first))};
    }
    // The lowest bit carries through its run. From a run up to bit 63 it carries out of the word: nothing is
    // left then, without a shift by 64.
    constexpr Iterator& operator++() {
      left_ &= left_ + (left_ & -left_);
      return *this;
    }
    constexpr bool operator!=(End) const { return left_ != 0; }

   private:
    uint64_t left_;
  };

  constexpr explicit PageRuns(uint64_t mask) : mask_(mask) {}
  constexpr Iterator begin() const { return Iterator(mask_); }
  constexpr End end() const { return {}; }
  // How many runs there are.
  constexpr uint32_t count() const { return static_cast<uint32_t>(std::popcount(mask_ & ~(mask_ << 1))); }

 private:
  uint64_t mask_;
};

// visit(uint32_t page) for each page of the mask, from the lowest on.
template <typename Visit>
constexpr void for_each_page(uint64_t mask, Visit visit) {
  for (uint64_t left = mask; left != 0; left &= left - 1)
    visit(static_cast<uint32_t>(std::countr_zero(left)));
}

}  // namespace ckpt
