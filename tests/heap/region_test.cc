#include "heap/region.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/units.h"
#include "heap/hooks.h"

namespace ckpt::heap {
namespace {

constexpr size_t kMany = 512 << 10;  // bytes: several words of bits

// Memory by way of jemalloc's table of hooks.
unsigned char* alloc(size_t size, size_t alignment = kPageSize, void* where = nullptr) {
  bool zero = false, committed = false;
  void* got = extent_hooks.alloc(&extent_hooks, where, size, alignment, &zero, &committed, 0);
  EXPECT_EQ(got != nullptr, zero && committed);
  return static_cast<unsigned char*>(got);
}

bool decommit_hook(void* start, size_t size, size_t offset, size_t length) {
  return !extent_hooks.decommit(&extent_hooks, start, size, offset, length, 0);
}

bool commit_hook(void* start, size_t size, size_t offset, size_t length) {
  return !extent_hooks.commit(&extent_hooks, start, size, offset, length, 0);
}

bool is_zero(const unsigned char* p, size_t size) {
  return std::all_of(p, p + size, [](unsigned char c) { return c == 0; });
}

bool is_stale(const void* page) {
  const HeapRegion* region = region_of(page);
  const uint64_t i = (reinterpret_cast<uint64_t>(page) - region->pages_start) / kPageSize;
  return (region->stale[i / 64].load() >> (i % 64) & 1) != 0;
}

size_t resident_pages(void* start, size_t size) {
  std::vector<unsigned char> resident(size / kPageSize);
  EXPECT_EQ(mincore(start, size, resident.data()), 0);
  return static_cast<size_t>(
      std::count_if(resident.begin(), resident.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

TEST(HeapRegion, NewMemoryIsZeroAlignedAndUsed) {
  auto* p = alloc(kMany, 1 << 20);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(reinterpret_cast<uint64_t>(p) % (1 << 20), 0u);
  EXPECT_TRUE(is_zero(p, kMany));
  std::memset(p, 1, kMany);
  const HeapRegion* region = region_of(p);
  ASSERT_NE(region, nullptr);
  EXPECT_GE(region->used_end.load(), reinterpret_cast<uint64_t>(p) + kMany);
  for (size_t i = 0; i < kMany; i += kPageSize) EXPECT_FALSE(is_stale(p + i));
}

TEST(HeapRegion, ItGrowsInPlaceWhereNothingFollows) {
  auto* p = alloc(kMany);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(alloc(kMany, kPageSize, p + kMany), p + kMany);
  EXPECT_EQ(alloc(kMany, kPageSize, p + kMany), nullptr) << "somebody has that already";
  std::memset(p, 1, 2 * kMany);
}

TEST(HeapRegion, FreePagesAreToldAndComeBackAsZeros) {
  auto* p = alloc(kMany);
  std::memset(p, 0xaa, kMany);
  const uint64_t before = stale_bytes();
  // Not at the bounds of words.
  const size_t offset = 3 * kPageSize, length = 101 * kPageSize;
  ASSERT_TRUE(decommit_hook(p, kMany, offset, length));
  EXPECT_EQ(stale_bytes(), before + length);
  for (size_t i = 0; i < kMany; i += kPageSize)
    EXPECT_EQ(is_stale(p + i), i >= offset && i < offset + length) << i;
  EXPECT_TRUE(std::all_of(p, p + offset, [](unsigned char c) { return c == 0xaa; }));
  // A part of it only.
  const size_t middle = 70 * kPageSize;
  ASSERT_TRUE(commit_hook(p, kMany, offset, middle));
  EXPECT_TRUE(is_zero(p + offset, middle));
  EXPECT_EQ(stale_bytes(), before + length - middle);
  EXPECT_TRUE(is_stale(p + offset + middle));
  EXPECT_FALSE(is_stale(p + offset + middle - kPageSize));
  ASSERT_TRUE(commit_hook(p, kMany, offset + middle, length - middle));
  EXPECT_TRUE(is_zero(p + offset, length));
  EXPECT_EQ(stale_bytes(), before);
  EXPECT_TRUE(std::all_of(p + offset + length, p + kMany, [](unsigned char c) { return c == 0xaa; }))
      << "beside it";
}

TEST(HeapRegion, MoreThanAShareOfItIsGivenBack) {
  constexpr size_t kMuch = 96 << 20;
  auto* p = alloc(kMuch);
  ASSERT_NE(p, nullptr);
  std::memset(p, 1, kMuch);
  const uint64_t before = stale_bytes();
  ASSERT_TRUE(decommit_hook(p, kMuch, 0, kMuch));
  EXPECT_EQ(stale_bytes(), before) << "given back, not stale";
  EXPECT_EQ(resident_pages(p, kMuch), 0u);
  ASSERT_TRUE(commit_hook(p, kMuch, 0, kMuch));
  EXPECT_TRUE(is_zero(p, kMuch));
}

TEST(HeapRegion, MemoryOutsideIsGivenBack) {
  auto* p = static_cast<unsigned char*>(
      mmap(nullptr, kMany, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(p, MAP_FAILED);
  ASSERT_EQ(region_of(p), nullptr);
  std::memset(p, 1, kMany);
  ASSERT_TRUE(decommit_hook(p, kMany, 0, kMany));
  EXPECT_EQ(resident_pages(p, kMany), 0u);
  ASSERT_TRUE(commit_hook(p, kMany, 0, kMany));
  EXPECT_TRUE(is_zero(p, kMany));
  auto* inside = alloc(kMany);
  EXPECT_TRUE(extent_hooks.merge(&extent_hooks, p, kMany, inside, kMany, true, 0)) << "true is no";
  EXPECT_FALSE(extent_hooks.merge(&extent_hooks, inside, kPageSize, inside + kPageSize, kPageSize, true, 0));
  EXPECT_FALSE(extent_hooks.split(&extent_hooks, inside, kMany, kPageSize, kMany - kPageSize, true, 0));
  munmap(p, kMany);
}

// Pages of different owners share words of bits, and regions.
TEST(HeapRegion, ThreadsSideBySide) {
  constexpr unsigned kThreads = 4;
  constexpr size_t kPiece = 5 * kPageSize;
  const uint64_t before = stale_bytes();
  std::vector<std::thread> threads;
  std::atomic<unsigned> wrong{0};
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&wrong, t] {
      std::vector<unsigned char*> mine;
      for (int n = 0; n < 300; ++n) {
        auto* p = static_cast<unsigned char*>(extend(nullptr, kPiece, kPageSize));
        if (p == nullptr || !is_zero(p, kPiece)) {
          ++wrong;
          return;
        }
        mine.push_back(p);
        std::memset(p, static_cast<int>(t + 1), kPiece);
      }
      for (int round = 0; round < 20; ++round) {
        for (auto* p : mine) {
          if (!std::all_of(p, p + kPiece, [t](unsigned char c) { return c == t + 1; })) ++wrong;
          if (!decommit(p + kPageSize, 3 * kPageSize)) ++wrong;
        }
        for (auto* p : mine) {
          commit(p + kPageSize, 3 * kPageSize);
          if (!is_zero(p + kPageSize, 3 * kPageSize)) ++wrong;
          std::memset(p + kPageSize, static_cast<int>(t + 1), 3 * kPageSize);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(stale_bytes(), before);
}

TEST(HeapRegion, WhatFitsInNoRegionIsRefused) {
  EXPECT_EQ(alloc(SIZE_MAX & ~(kPageSize - 1)), nullptr);
  EXPECT_EQ(alloc(1ull << 60), nullptr);
}

}  // namespace
}  // namespace ckpt::heap
