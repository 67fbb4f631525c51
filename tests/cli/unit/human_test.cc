#include "cli/text/human.h"

#include <gtest/gtest.h>

namespace ckpt::cli {

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(65536), "64.0 KiB");
  EXPECT_EQ(human_bytes((1u << 20) - 1), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(human_bytes(uint64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Human, Durations) {
  EXPECT_EQ(human_duration(0), "0 ns");
  EXPECT_EQ(human_duration(999), "999 ns");
  EXPECT_EQ(human_duration(12'340), "12.3 us");
  EXPECT_EQ(human_duration(999'999), "1.00 ms");  // not "1000 us"
  EXPECT_EQ(human_duration(1'230'000'000), "1.23 s");
  EXPECT_EQ(human_duration(125'000'000'000), "2 min 5 s");
  EXPECT_EQ(human_duration(3'780'000'000'000), "1 h 3 min");
  EXPECT_EQ(human_duration(90'000'000'000'000), "1 d 1 h");
  EXPECT_EQ(human_duration(-1'500), "-1.50 us");
}

TEST(Human, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1,000");
  EXPECT_EQ(human_count(1234567), "1,234,567");
  EXPECT_EQ(plural(1, "thread", "threads"), "1 thread");
  EXPECT_EQ(plural(0, "thread", "threads"), "0 threads");
}

}  // namespace ckpt::cli
