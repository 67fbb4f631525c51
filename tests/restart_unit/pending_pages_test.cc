// PendingPages against a list of single pages, over random sequences of what a program may do.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "restart/feed/pending_pages.h"

namespace ckpt {
namespace {

constexpr uint64_t kPages = 200;

Addr page(uint64_t n) { return Addr{0x10000000 + n * kPageSize}; }
AddrRange pages(uint64_t first, uint64_t count) { return {page(first), page(first + count)}; }

class Model {
 public:
  void add(uint64_t first, uint64_t count) {
    for (uint64_t n = first; n < first + count; ++n) saved_[n] = n;
  }
  void remove(uint64_t first, uint64_t count) {
    for (uint64_t n = first; n < first + count; ++n) saved_.erase(n);
  }
  void move(uint64_t from, uint64_t count, uint64_t to) {
    std::map<uint64_t, uint64_t> moving;
    for (uint64_t n = from; n < from + count; ++n) {
      if (saved_.contains(n)) moving[to + (n - from)] = saved_[n];
    }
    remove(from, count);
    remove(to, count);
    saved_.insert(moving.begin(), moving.end());
  }
  void compare(const PendingPages& pending, uint64_t first, uint64_t count) const {
    EXPECT_EQ(pending.empty(), saved_.empty());
    for (uint64_t n = 0; n < 2 * kPages; ++n) {
      auto it = saved_.find(n);
      auto got = pending.saved_address(page(n));
      ASSERT_EQ(got.has_value(), it != saved_.end()) << n;
      if (got) {
        ASSERT_EQ(got->value, page(it->second).value) << n;
      }
    }
    std::map<uint64_t, uint64_t> expected, parts;
    for (auto [at, saved] : saved_) {
      if (saved >= first && saved < first + count) expected[page(at).value] = page(saved).value;
    }
    for (const PendingPages::Part& p : pending.parts_of(pages(first, count))) {
      for (uint64_t i = 0; i < p.length; i += kPageSize) parts[p.address.value + i] = p.saved.value + i;
    }
    EXPECT_EQ(parts, expected);
  }

 private:
  std::map<uint64_t, uint64_t> saved_;  // page number now: page number at the checkpoint
};

TEST(PendingPages, AsAListOfPages) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
    PendingPages pending;
    Model model;
    for (uint64_t at = 0; at < kPages;) {
      uint64_t count = 1 + below(30);
      if (at + count > kPages) break;
      pending.add(pages(at, count));
      model.add(at, count);
      at += count + below(3);
    }
    for (int step = 0; step < 60; ++step) {
      uint64_t first = below(2 * kPages - 40), count = 1 + below(40);
      if (below(3) == 0) {
        // The kernel refuses to move memory onto itself.
        uint64_t to = below(2 * kPages - 40);
        if (to + count <= first || first + count <= to) {
          pending.move(pages(first, count), page(to));
          model.move(first, count, to);
        }
      } else {
        pending.remove(pages(first, count / 4));
        model.remove(first, count / 4);
      }
      model.compare(pending, below(kPages), below(60));
      if (HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    // A child's is a copy.
    PendingPages child = pending;
    pending.remove(pages(0, 2 * kPages));
    EXPECT_TRUE(pending.empty());
    model.compare(child, 0, kPages);
  }
}

}  // namespace
}  // namespace ckpt
