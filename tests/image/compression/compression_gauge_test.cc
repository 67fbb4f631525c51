#include "image/write/compress/compression_gauge.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ckpt {
namespace {

// A device and a compressor of given rates, in bytes for each ns: what the sink would do with them.
struct Simulated {
  double device, compressor, left;
  bool overlapped = true;
  double contention = 0;     // ns that all else takes longer, for each byte, while the processors compress
  double sealing = 0;        // ns to encrypt each byte that is stored
  uint64_t stolen_each = 0;  // extents: in one of so many another process has the processor for 3 ms
  uint64_t compressed = 0, tries = 0, memory = 0;

  void write(CompressionGauge& gauge, uint64_t bytes) {
    constexpr uint64_t kChunk = 1 << 20, kPlain = 64 << 10, kPacked = 256 << 10;
    uint64_t stored = 0, gathered = 0;
    double cpu = 0;
    for (uint64_t done = 0; done < bytes;) {
      const bool pack = gauge.compress_next();
      const uint64_t n = pack ? kPacked : kPlain;
      done += n;
      memory += n;
      gathered += n;
      cpu += double(n) / 8;  // copied and summed
      if (pack) {
        tries++;
        const double ns = double(n) / compressor + (stolen_each != 0 && tries % stolen_each == 0 ? 3e6 : 0);
        cpu += ns + contention * double(n);
        if (left < 1) compressed += n;
        stored += uint64_t(double(n) * left);
        gauge.compressed(n, uint64_t(double(n) * left), int64_t(ns), int64_t(ns));
      } else {
        gauge.left_alone();
        stored += n;
      }
      if (stored < kChunk) continue;
      const double sealed = sealing * double(stored), writing = double(stored) / device;
      cpu += sealed;
      const double wait = overlapped ? std::max(0.0, writing - cpu) : writing;
      gauge.wrote(stored, gathered, int64_t(cpu + wait), int64_t(wait), int64_t(sealed));
      stored = gathered = 0;
      cpu = 0;
    }
  }
  double share() const { return double(compressed) / double(memory); }
};

constexpr uint64_t kMemory = 1ull << 30;

// Of an image of that much memory: how much of it is compressed.
double share_of(Simulated machine) {
  CompressionGauge gauge;
  gauge.start(true);
  machine.write(gauge, kMemory);
  return machine.share();
}

TEST(CompressionGauge, ASlowDeviceIsHelpedByCompression) {
  EXPECT_GT(share_of({.device = 0.2, .compressor = 0.7, .left = 0.5}), 0.95);
}

TEST(CompressionGauge, ADeviceFasterThanTheCompressorIsLeftAlone) {
  EXPECT_LT(share_of({.device = 1.6, .compressor = 0.7, .left = 0.5}), 0.02);
}

TEST(CompressionGauge, WhereWritesAreWaitedForTheTimesAdd) {
  CompressionGauge gauge;
  gauge.start(false);
  // 1/0.7 + 0.5/0.5 is more than 1/0.5: as fast as the device is not fast enough here.
  Simulated machine{.device = 0.5, .compressor = 0.7, .left = 0.5, .overlapped = false};
  machine.write(gauge, kMemory);
  EXPECT_LT(machine.share(), 0.02);
  gauge.start(false);
  Simulated slow{.device = 0.2, .compressor = 0.7, .left = 0.5, .overlapped = false};
  slow.write(gauge, kMemory);
  EXPECT_GT(slow.share(), 0.95);
}

TEST(CompressionGauge, WhatDoesNotCompressIsHardlyTried) {
  CompressionGauge gauge;
  gauge.start(true);
  Simulated machine{.device = 0.2, .compressor = 0.7, .left = 1};
  machine.write(gauge, kMemory);
  EXPECT_LE(machine.tries, 20u);
}

TEST(CompressionGauge, MemoryThatStartsToCompressIsFound) {
  CompressionGauge gauge;
  gauge.start(true);
  Simulated random{.device = 0.2, .compressor = 0.7, .left = 1};
  random.write(gauge, kMemory);
  Simulated text{.device = 0.2, .compressor = 0.7, .left = 0.3};
  text.write(gauge, kMemory);
  EXPECT_GT(text.share(), 0.7);
}

TEST(CompressionGauge, NothingIsCompressedWhileTheDeviceIsNotWaitedFor) {
  CompressionGauge gauge;
  gauge.start(true);
  Simulated machine{.device = 100, .compressor = 0.7, .left = 0.1};
  machine.write(gauge, kMemory);
  EXPECT_EQ(machine.tries, 0u);
}

// 1/8 + 0.5 without; with, 1/8 + 0.4 + 0.5 * 0.5, or 1/8 + 0.2 + 0.5 * 0.5. The device is waited for by
// neither.
TEST(CompressionGauge, EncryptingIsNoWaitingForTheDevice) {
  EXPECT_LT(share_of({.device = 100, .compressor = 2.5, .left = 0.5, .sealing = 0.5}), 0.02);
  EXPECT_GT(share_of({.device = 100, .compressor = 5, .left = 0.5, .sealing = 0.5}), 0.95)
      << "what is compressed is encrypted sooner";
}

// What compressing costs the others is seen when it is done, and remembered when it is not.
TEST(CompressionGauge, WhatCompressingTakesFromTheCopiesCounts) {
  EXPECT_LT(share_of({.device = 1.6, .compressor = 4, .left = 0.5, .contention = 0.6}), 0.15);
  EXPECT_GT(share_of({.device = 1.6, .compressor = 4, .left = 0.5}), 0.95);
}

TEST(CompressionGauge, ATurnOfAnotherProcessDoesNotEndIt) {
  EXPECT_GT(share_of({.device = 0.3, .compressor = 2, .left = 0.5, .stolen_each = 20}), 0.95);
}

TEST(CompressionGauge, TheNextImageBeginsWithWhatThisOneTaught) {
  CompressionGauge gauge;
  gauge.start(true);
  EXPECT_FALSE(gauge.compress_next());
  Simulated machine{.device = 0.2, .compressor = 0.7, .left = 0.5};
  machine.write(gauge, kMemory);
  gauge.start(true);
  EXPECT_TRUE(gauge.compress_next());
  EXPECT_FALSE(gauge.tries_next());
  // A device that is waited for in another way is another device.
  gauge.start(false);
  EXPECT_FALSE(gauge.compress_next());
}

// Memory that compresses too slowly the one way, and hardly at all the other.
TEST(CompressionGauge, TheWaysAreTriedByTurns) {
  CompressionGauge gauge;
  gauge.start(true);
  for (int i = 0; i < 8; i++) gauge.wrote(1 << 20, 1 << 20, 5'000'000, 4'000'000);
  for (bool quickest : {true, false, true, false}) {
    while (!gauge.compress_next()) gauge.left_alone();
    EXPECT_TRUE(gauge.tries_next());
    EXPECT_EQ(gauge.tries_quickest(), quickest);
    gauge.compressed(64 << 10, 64 << 10, 30'000, 30'000);
  }
}

}  // namespace
}  // namespace ckpt
