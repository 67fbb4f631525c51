#include "copier/segment_table.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ckpt {
namespace {

constexpr uint64_t kSegment = 16 * kPageSize;

AddrRange pages(uint64_t first, uint64_t count) {
  return {Addr{first * kPageSize}, Addr{(first + count) * kPageSize}};
}

class Table : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(arena_.reserve(1 << 20)); }
  Arena arena_;
  SegmentTable table_;
};

TEST_F(Table, CutsRunsIntoAlignedSegments) {
  ASSERT_TRUE(table_.reserve(arena_, kSegment, 8, 2));
  ASSERT_TRUE(table_.add_region({pages(100, 60)}));
  ASSERT_TRUE(table_.add_run(pages(100, 2)));   // segment of pages 96 to 111
  ASSERT_TRUE(table_.add_run(pages(110, 4)));   // that one and the next
  ASSERT_TRUE(table_.add_run(pages(144, 16)));  // a whole one
  ASSERT_EQ(table_.size(), 3u);
  EXPECT_EQ(table_[{0}].base, pages(96, 1).start);
  EXPECT_EQ(table_[{0}].present, 0b1100'0000'0011'0000u);
  EXPECT_EQ(table_[{1}].present, 0b11u);
  EXPECT_EQ(table_[{2}].present, 0xffffu);
  EXPECT_EQ(table_.window(table_[{0}]), pages(100, 12)) << "cut to the region";
  EXPECT_EQ(table_.window(table_[{1}]), pages(112, 16));
  EXPECT_EQ(table_.window(table_[{2}]), pages(144, 16));
}

TEST_F(Table, RegionsThatShareAWindowHaveSegmentsOfTheirOwn) {
  ASSERT_TRUE(table_.reserve(arena_, kSegment, 8, 2));
  ASSERT_TRUE(table_.add_region({pages(32, 4)}));
  ASSERT_TRUE(table_.add_run(pages(32, 4)));
  ASSERT_TRUE(table_.add_region({pages(36, 4), false}));
  ASSERT_TRUE(table_.add_run(pages(37, 3)));
  ASSERT_EQ(table_.size(), 2u);
  EXPECT_EQ(table_.window(table_[{0}]), pages(32, 4));
  EXPECT_EQ(table_.window(table_[{1}]), pages(36, 4));
  EXPECT_TRUE(table_.region(table_[{0}]).readable);
  EXPECT_FALSE(table_.region(table_[{1}]).readable);
  SegmentId id;
  ASSERT_TRUE(table_.find(pages(35, 1).start + 17, &id));
  EXPECT_EQ(id.value, 0u);
  ASSERT_TRUE(table_.find(pages(38, 1).start, &id));
  EXPECT_EQ(id.value, 1u);
  // In a window, though no page at the stop; outside of every region.
  ASSERT_TRUE(table_.find(pages(36, 1).start, &id));
  EXPECT_EQ(id.value, 1u);
  EXPECT_FALSE(table_.is_present(pages(36, 1).start));
  EXPECT_TRUE(table_.is_present(pages(37, 1).start));
  EXPECT_FALSE(table_.find(pages(40, 1).start, &id));
}

TEST_F(Table, SixtyFourPagesFillAMask) {
  ASSERT_TRUE(table_.reserve(arena_, 64 * kPageSize, 4, 1));
  ASSERT_TRUE(table_.add_region({pages(64, 128)}));
  ASSERT_TRUE(table_.add_run(pages(64, 128)));
  ASSERT_EQ(table_.size(), 2u);
  EXPECT_EQ(table_[{0}].present, ~0ull);
  EXPECT_EQ(table_[{1}].present, ~0ull);
}

TEST_F(Table, RefusesMoreThanItsCapacity) {
  ASSERT_TRUE(table_.reserve(arena_, kSegment, 2, 1));
  ASSERT_TRUE(table_.add_region({pages(0, 64)}));
  EXPECT_FALSE(table_.add_run(pages(0, 48)));
  EXPECT_EQ(table_.size(), 2u);
  SegmentTable huge;
  EXPECT_FALSE(huge.reserve(arena_, kSegment, 1 << 20, 1));
}

// Every page against a plain search.
TEST_F(Table, FindsWhatAPlainSearchFinds) {
  ASSERT_TRUE(table_.reserve(arena_, kSegment, 512, 64));
  std::vector<bool> present(2000);
  unsigned random = 5;
  for (uint64_t at = 3; at < 1900;) {
    uint64_t size = 1 + rand_r(&random) % 70;
    ASSERT_TRUE(table_.add_region({pages(at, size)}));
    for (uint64_t p = at; p < at + size;) {
      uint64_t run = 1 + rand_r(&random) % 9;
      run = std::min(run, at + size - p);
      if (rand_r(&random) % 3 != 0) {
        ASSERT_TRUE(table_.add_run(pages(p, run)));
        for (uint64_t i = p; i < p + run; ++i) present[i] = true;
      }
      p += run;
    }
    at += size + rand_r(&random) % 20;
  }
  for (uint64_t p = 0; p < 2000; ++p) {
    SegmentId id;
    ASSERT_EQ(table_.is_present(pages(p, 1).start), present[p]) << p;
    bool in_a_window = false;
    for (SegmentId other{0}; other.value < table_.size(); ++other.value) {
      in_a_window = in_a_window || table_.window(table_[other]).contains(pages(p, 1).start);
    }
    ASSERT_EQ(table_.find(pages(p, 1).start + 4095, &id), in_a_window) << p;
    if (in_a_window) {
      ASSERT_TRUE(table_.window(table_[id]).contains(pages(p, 1).start));
    }
  }
  for (int i = 0; i < 2000; ++i) {
    AddrRange range = pages(rand_r(&random) % 1950, 1 + rand_r(&random) % 50);
    SegmentId first, last;
    table_.find_range(range, &first, &last);
    for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
      if (table_.window(table_[id]).overlaps(range)) {
        ASSERT_TRUE(first <= id && id < last);
      }
    }
  }
}

// Ahead of the stop: who unprotects is told whether there was a protection to count on.
TEST_F(Table, WhatIsWrittenAheadOfTheStopIsProtectedAgain) {
  ASSERT_TRUE(table_.reserve(arena_, kSegment, 4, 1));
  ASSERT_TRUE(table_.add_region({pages(0, 32)}));
  ASSERT_TRUE(table_.add_window(pages(0, 32)));
  SegmentId a{0}, b{1};
  EXPECT_EQ(table_[a].present, 0u);
  EXPECT_EQ(table_.all_pages(a), 0xffffu);
  EXPECT_FALSE(table_.protect(a)) << "it is";
  EXPECT_TRUE(table_.written(a));
  EXPECT_FALSE(table_.written(a));
  EXPECT_EQ(table_.state(a), SegmentState::kWritten);
  EXPECT_TRUE(table_.protect(a));
  EXPECT_EQ(table_.state(a), SegmentState::kProtected);
  EXPECT_TRUE(table_.unsettled(b));
  EXPECT_FALSE(table_.protect(b)) << "until the stop, whatever happens";
  EXPECT_EQ(table_.state(b), SegmentState::kUnsettled);
  table_.set_present(pages(3, 20));
  EXPECT_EQ(table_.bytes_to_copy(), 20 * kPageSize);
  table_.clear_present(pages(10, 10));
  EXPECT_EQ(table_.bytes_to_copy(), 10 * kPageSize);
  EXPECT_TRUE(table_.is_present(pages(9, 1).start));
  EXPECT_FALSE(table_.is_present(pages(10, 1).start));
  EXPECT_TRUE(table_.is_present(pages(20, 1).start));
}

TEST_F(Table, OneOfManyThreadsClaimsEachSegment) {
  constexpr size_t kSegments = 4000;
  constexpr int kThreads = 5;
  Arena arena;
  ASSERT_TRUE(arena.reserve(1 << 20));
  ASSERT_TRUE(table_.reserve(arena, kPageSize, kSegments, 1));
  ASSERT_TRUE(table_.add_region({pages(0, kSegments)}));
  ASSERT_TRUE(table_.add_run(pages(0, kSegments)));
  std::vector<int> owner(kSegments, -1);  // written by the owner, read by who saw kCopied
  std::atomic<int> strange{0}, claimed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kSegments; ++i) {
        SegmentId id{static_cast<uint32_t>(i)};
        if (table_.claim(id)) {
          ++claimed;
          if (owner[i] != -1) ++strange;
          owner[i] = t;
          table_.saved(id);
          if (i % 10 == 0)
            table_.lose(id);
          else
            table_.finish(id);
        } else {
          table_.await_copied(id);
          if (owner[i] == -1) ++strange;
          if (table_.state(id) != (i % 10 == 0 ? SegmentState::kLost : SegmentState::kCopied)) ++strange;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(claimed.load(), int{kSegments});
  EXPECT_EQ(strange.load(), 0);
}

// Two threads that meet at every segment: never both.
TEST_F(Table, TwoThatClaimAtOnceAreOne) {
  constexpr uint32_t kSegments = 4000;
  ASSERT_TRUE(table_.reserve(arena_, kPageSize, kSegments, 1));
  ASSERT_TRUE(table_.add_region({pages(0, kSegments)}));
  ASSERT_TRUE(table_.add_run(pages(0, kSegments)));
  std::atomic<uint32_t> arrived{0}, claimed{0};
  auto meet_and_claim = [&] {
    for (uint32_t i = 0; i < kSegments; ++i) {
      ++arrived;
      for (int spins = 0; arrived < 2 * (i + 1); ++spins) {
        if (spins > 1000) std::this_thread::yield();
      }
      if (table_.claim({i})) ++claimed;
    }
  };
  std::thread other(meet_and_claim);
  meet_and_claim();
  other.join();
  EXPECT_EQ(claimed.load(), kSegments);
}

// Threads that wait sleep through kSaved, which is not the end, and none of them sleeps on after it.
TEST_F(Table, WaitersAreWokenByTheEndOfACopy) {
  for (int round = 0; round < 300; ++round) {
    arena_.reset();
    ASSERT_TRUE(table_.reserve(arena_, kPageSize, 1, 1));
    ASSERT_TRUE(table_.add_region({pages(0, 1)}));
    ASSERT_TRUE(table_.add_run(pages(0, 1)));
    SegmentId id{0};
    ASSERT_TRUE(table_.claim(id));
    std::atomic<bool> ended{false};
    std::atomic<int> early{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([&] {
        table_.await_copied(id);
        if (!ended) ++early;
      });
    }
    if (round % 2 == 0) std::this_thread::yield();
    table_.saved(id);
    ended = true;
    if (round % 3 == 0)
      table_.lose(id);
    else
      table_.finish(id);
    for (auto& w : waiters) w.join();
    EXPECT_EQ(early.load(), 0);
  }
}

}  // namespace
}  // namespace ckpt
