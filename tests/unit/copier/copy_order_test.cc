#include "copier/copy_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace ckpt {
namespace {

constexpr uint64_t kSegment = 16 * kPageSize;

class Orders : public ::testing::Test {
 protected:
  void make(uint32_t segments) {
    ASSERT_TRUE(arena_.reserve(1 << 20));
    ASSERT_TRUE(table_.reserve(arena_, kSegment, segments, 1));
    const AddrRange all{Addr{kSegment}, Addr{kSegment * (segments + 1)}};
    ASSERT_TRUE(table_.add_region({all}));
    ASSERT_TRUE(table_.add_run(all));
  }
  // What is proposed, until nothing is; `meanwhile` after each.
  template <typename Meanwhile>
  std::vector<uint32_t> proposed(CopyOrder& scan, Order order, Meanwhile&& meanwhile) {
    std::vector<uint32_t> ids;
    scan.begin(order);
    for (SegmentId id; scan.next(&id);) {
      ids.push_back(id.value);
      meanwhile(id);
    }
    return ids;
  }
  std::vector<uint32_t> proposed(Order order) {
    CopyOrder scan(table_);
    return proposed(scan, order, [](SegmentId) {});
  }
  Arena arena_;
  SegmentTable table_;
};

TEST_F(Orders, ByAddress) {
  make(4);
  table_[{2}].heat = 1;
  EXPECT_EQ(proposed(Order::kAddress), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST_F(Orders, HotAndColdFirstAndThenAll) {
  make(4);
  table_[{1}].heat = 1;
  table_[{3}].heat = 7;
  EXPECT_EQ(proposed(Order::kHot), (std::vector<uint32_t>{1, 3, 0, 1, 2, 3}));
  EXPECT_EQ(proposed(Order::kCold), (std::vector<uint32_t>{0, 2, 0, 1, 2, 3}));
}

TEST_F(Orders, WhatLiesBehindAFaultIsNext) {
  make(12);
  CopyOrder scan(table_);
  auto ids = proposed(scan, Order::kFollow, [&](SegmentId id) {
    if (id.value == 1) scan.faulted({6});
  });
  EXPECT_EQ(ids, (std::vector<uint32_t>{0, 1, 7, 8, 9, 10, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  // At the end of the table, and while another is followed.
  ids = proposed(scan, Order::kFollow, [&](SegmentId id) {
    if (id.value == 0) scan.faulted({3});
    if (id.value == 5) scan.faulted({10});
  });
  EXPECT_EQ(std::vector<uint32_t>(ids.begin(), ids.begin() + 5), (std::vector<uint32_t>{0, 4, 5, 11, 1}));
  EXPECT_EQ(ids.back(), 11u);
}

TEST_F(Orders, OthersDoNotFollow) {
  make(5);
  CopyOrder scan(table_);
  auto ids = proposed(scan, Order::kAddress, [&](SegmentId) { scan.faulted({3}); });
  EXPECT_EQ(ids, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
}

TEST_F(Orders, NothingOfNothing) {
  SegmentTable empty;
  for (Order order : {Order::kAddress, Order::kFollow, Order::kHot, Order::kCold}) {
    CopyOrder scan(empty);
    scan.faulted({0});
    EXPECT_TRUE(proposed(scan, order, [](SegmentId) {}).empty());
  }
}

// Heat is what was seen ahead of the stop, and is not lost when tables are put together.
TEST_F(Orders, HeatCountsWritesAheadOfTheStop) {
  make(3);
  EXPECT_TRUE(table_.written({1}));
  EXPECT_FALSE(table_.written({1})) << "it is writable already";
  EXPECT_EQ(table_[{1}].heat, 1);
  EXPECT_TRUE(table_.protect({1}));
  EXPECT_TRUE(table_.written({1}));
  EXPECT_EQ(table_[{1}].heat, 2);
  EXPECT_EQ(table_[{0}].heat, 0);
  SegmentTable more;
  ASSERT_TRUE(more.reserve(arena_, kSegment, 1, 1));
  ASSERT_TRUE(more.add_region({{Addr{0}, Addr{kSegment}}}));
  ASSERT_TRUE(more.add_window({Addr{0}, Addr{kSegment}}));
  ASSERT_TRUE(table_.merge(arena_, more));
  EXPECT_EQ(table_[{2}].heat, 2);
}

}  // namespace
}  // namespace ckpt
