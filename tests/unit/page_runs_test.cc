#include "base/memory/page_runs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ckpt {
namespace {

std::vector<std::pair<uint32_t, uint32_t>> runs_of(uint64_t mask) {
  std::vector<std::pair<uint32_t, uint32_t>> runs;
  for (PageRun run : PageRuns(mask)) runs.push_back({run.first, run.count});
  return runs;
}

// Bit by bit.
std::vector<std::pair<uint32_t, uint32_t>> expected(uint64_t mask) {
  std::vector<std::pair<uint32_t, uint32_t>> runs;
  for (uint32_t i = 0; i < 64; ++i) {
    if ((mask >> i & 1) == 0) continue;
    if (i > 0 && (mask >> (i - 1) & 1) != 0)
      ++runs.back().second;
    else
      runs.push_back({i, 1});
  }
  return runs;
}

TEST(PageRuns, NoneOneAndTheFullWord) {
  EXPECT_TRUE(runs_of(0).empty());
  EXPECT_EQ(runs_of(~0ull), (std::vector<std::pair<uint32_t, uint32_t>>{{0, 64}}));
  EXPECT_EQ(runs_of(1), (std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}}));
  EXPECT_EQ(runs_of(1ull << 63), (std::vector<std::pair<uint32_t, uint32_t>>{{63, 1}}));
  EXPECT_EQ(runs_of(0x8000000000000001), (std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}, {63, 1}}));
}

TEST(PageRuns, EachRunWhereverItBeginsAndEnds) {
  for (uint32_t first = 0; first < 64; ++first) {
    for (uint32_t count = 1; first + count <= 64; ++count) {
      const uint64_t mask = (count == 64 ? ~0ull : (1ull << count) - 1) << first;
      EXPECT_EQ(runs_of(mask), (std::vector<std::pair<uint32_t, uint32_t>>{{first, count}}));
    }
  }
}

TEST(PageRuns, AsBitByBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    // Few bits, half of them, and nearly all.
    uint64_t mask = random();
    for (int twice = 0; twice < 2; ++twice) {
      if (i % 3 == 0) mask &= random();
      if (i % 3 == 1) mask |= random();
    }
    ASSERT_EQ(runs_of(mask), expected(mask)) << std::hex << mask;
    ASSERT_EQ(PageRuns(mask).count(), expected(mask).size()) << std::hex << mask;
  }
}

TEST(PageRuns, RangesBehindABase) {
  const Addr base{0x10000};
  for (PageRun run : PageRuns(0b1100)) {
    EXPECT_EQ(run.at(base).start.value, 0x12000u);
    EXPECT_EQ(run.at(base).end.value, 0x14000u);
    EXPECT_EQ(run.offset(), 0x2000u);
    EXPECT_EQ(run.bytes(), 0x2000u);
  }
}

TEST(PageRuns, FirstPagesUpToTheWholeWord) {
  for (uint64_t count = 0; count <= 64; ++count) {
    uint64_t expected = 0;
    for (uint64_t i = 0; i < count; ++i) expected |= uint64_t{1} << i;
    EXPECT_EQ(first_pages(count), expected) << count;
  }
  EXPECT_EQ(first_pages(65), ~uint64_t{0});
}

}  // namespace
}  // namespace ckpt
