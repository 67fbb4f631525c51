#include "image/write/compress/compression_pace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ckpt {
namespace {

// Text, as lz4 compresses it on one core: bytes for each ns, and what is left.
struct Speed {
  int acceleration;
  double rate, left;
};
constexpr Speed kText[] = {{1, 0.71, 0.37}, {4, 0.74, 0.40}, {16, 0.96, 0.51}, {64, 2.14, 0.79}};

// One image; the time that it takes.
double write(CompressionPace& pace, double device, uint64_t chunks, bool overlapped = true,
             int most = CompressionPace::kMost) {
  pace.start(overlapped, most);
  const Speed* way = std::find_if(std::begin(kText), std::end(kText),
                                  [&](const Speed& w) { return w.acceleration == pace.acceleration(); });
  EXPECT_NE(way, std::end(kText)) << pace.acceleration();
  constexpr double kChunk = 1 << 20;
  double total = 0;
  for (uint64_t i = 0; i < chunks; i++) {
    const double here = kChunk / way->left / way->rate, writing = kChunk / device;
    const double wait = overlapped ? std::max(0.0, writing - here) : writing;
    pace.wrote(int64_t(here + wait), int64_t(wait));
    total += here + wait;
    EXPECT_EQ(pace.acceleration(), way->acceleration) << "within an image";
  }
  pace.finish();
  return total;
}

int after_images(double device, bool overlapped = true, int most = CompressionPace::kMost) {
  CompressionPace pace;
  for (int i = 0; i < 6; i++) write(pace, device, 200, overlapped, most);
  return pace.acceleration();
}

TEST(CompressionPace, ASlowDeviceGivesTimeToLook) { EXPECT_EQ(after_images(0.1), 1); }

TEST(CompressionPace, AFastDeviceIsNotKeptWaiting) {
  EXPECT_EQ(after_images(2.0), CompressionPace::kMost);
  EXPECT_EQ(after_images(2.0, true, CompressionPace::kMostForTime), CompressionPace::kMostForTime);
}

// A chunk takes either as long: to be quicker would gain nothing, nor would there be time to find more.
TEST(CompressionPace, WhereNeitherWaitsItStays) {
  CompressionPace pace;
  const int first = pace.acceleration();
  for (int i = 0; i < 6; i++) write(pace, 0.74 * 0.40 / 1.25, 200);  // a fifth of the time is waiting
  EXPECT_EQ(pace.acceleration(), first);
}

TEST(CompressionPace, WhereWritesAreWaitedForEachHasItsTurn) {
  EXPECT_EQ(after_images(2.0, false), CompressionPace::kMost);
  EXPECT_EQ(after_images(0.03, false), 1);
  CompressionPace pace;
  const int first = pace.acceleration();
  for (int i = 0; i < 6; i++) write(pace, 0.74 * 0.40 / 1.5, 200, false);
  EXPECT_EQ(pace.acceleration(), first);
}

TEST(CompressionPace, ADeviceThatChangesIsFollowed) {
  CompressionPace pace;
  for (int i = 0; i < 4; i++) write(pace, 2.0, 200);
  EXPECT_EQ(pace.acceleration(), CompressionPace::kMost);
  for (int i = 0; i < 4; i++) write(pace, 0.1, 200);
  EXPECT_EQ(pace.acceleration(), 1);
}

TEST(CompressionPace, SmallImagesAreAddedUp) {
  CompressionPace pace;
  const int first = pace.acceleration();
  for (int i = 0; i < 3; i++) write(pace, 2.0, 5);
  EXPECT_EQ(pace.acceleration(), first);
  write(pace, 2.0, 5);
  EXPECT_GT(pace.acceleration(), first);
}

}  // namespace
}  // namespace ckpt
