#include "copier/segment_size.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

constexpr uint64_t kPool = 64 << 20;

TEST(SegmentSize, FollowsWhatWasForced) {
  EXPECT_EQ(next_segment(64 << 10, 0, 0), 64u << 10) << "nothing was copied";
  EXPECT_EQ(next_segment(64 << 10, 25, 75), 64u << 10);
  EXPECT_EQ(next_segment(64 << 10, 26, 74), 128u << 10) << "more than a quarter";
  EXPECT_EQ(next_segment(64 << 10, 1, 0), 128u << 10);
  EXPECT_EQ(next_segment(64 << 10, 30, 970), 32u << 10) << "less than one in 32";
  EXPECT_EQ(next_segment(64 << 10, 31, 969), 64u << 10);
}

TEST(SegmentSize, HasBounds) {
  EXPECT_EQ(next_segment(kLargestSegment, 99, 1), kLargestSegment);
  EXPECT_EQ(next_segment(kSmallestSegment, 0, 99), kSmallestSegment);
  EXPECT_EQ(bounded_segment(4 << 10, 4ull << 30, kPool), 4u << 10);
  EXPECT_EQ(bounded_segment(4 << 10, 16ull << 30, kPool), 16u << 10) << "a million segments";
  EXPECT_EQ(bounded_segment(4 << 10, 1ull << 50, kPool), kLargestSegment);
  EXPECT_EQ(bounded_segment(256 << 10, 1 << 20, 1 << 20), 64u << 10) << "sixteen in the pool";
  EXPECT_EQ(bounded_segment(4 << 10, 1ull << 50, 64 << 10), kSmallestSegment)
      << "the pool's bound is the harder one";
}

}  // namespace
}  // namespace ckpt
