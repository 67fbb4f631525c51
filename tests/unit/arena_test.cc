#include "base/memory/arena.h"

#include <gtest/gtest.h>

#include <vector>

namespace ckpt {
namespace {

TEST(Arena, GivesAlignedZeroedMemoryUntilItIsFull) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(3 * kPageSize - 1));
  EXPECT_EQ(arena.range().size(), 3 * kPageSize);
  auto* a = static_cast<std::byte*>(arena.allocate(1, 1));
  auto* b = static_cast<std::byte*>(arena.allocate(5, 64));
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(b[i], std::byte{0});
  EXPECT_EQ(arena.used(), 69u);
  EXPECT_EQ(arena.allocate(3 * kPageSize), nullptr);
  EXPECT_EQ(arena.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(arena.used(), 69u) << "what does not fit takes nothing";
  ASSERT_NE(arena.allocate(3 * kPageSize - 69, 1), nullptr);
  EXPECT_EQ(arena.allocate(1, 1), nullptr);
}

TEST(Arena, IsZeroAgainAfterReset) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(4 * kPageSize));
  auto* first = static_cast<std::byte*>(arena.allocate(kPageSize + 100));
  std::memset(first, 0xab, kPageSize + 100);
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
  auto* again = static_cast<std::byte*>(arena.allocate(4 * kPageSize));
  ASSERT_EQ(again, first);
  for (size_t i = 0; i < 4 * kPageSize; ++i) ASSERT_EQ(again[i], std::byte{0}) << i;
}

TEST(Arena, WithoutAReservationIsEmpty) {
  Arena arena;
  EXPECT_EQ(arena.allocate(1), nullptr);
  arena.reset();
  EXPECT_FALSE(arena.reserve(SIZE_MAX / 2));
  EXPECT_EQ(arena.allocate(1), nullptr);
}

TEST(ArenaVector, KeepsItsElementsWhenItGrows) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(1 << 20));
  ArenaVector<uint32_t> v(arena);
  for (uint32_t i = 0; i < 5000; ++i) ASSERT_TRUE(v.push_back(i));
  uint32_t more[3] = {7, 8, 9};
  ASSERT_TRUE(v.append(more, 3));
  ASSERT_EQ(v.size(), 5003u);
  for (uint32_t i = 0; i < 5000; ++i) ASSERT_EQ(v[i], i);
  EXPECT_EQ(v.back(), 9u);
  v.truncate(9000);
  EXPECT_EQ(v.size(), 5003u);
  v.truncate(2);
  EXPECT_EQ(v.size(), 2u);
}

TEST(ArenaVector, SaysWhenTheArenaIsFull) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(kPageSize));
  ArenaVector<uint64_t> v(arena);
  size_t n = 0;
  while (v.push_back(n)) ++n;
  EXPECT_EQ(v.size(), n);
  EXPECT_GE(n, 64u);
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(v[i], i) << "a failed growth must leave what was there";
  std::vector<uint64_t> many(kPageSize);
  EXPECT_FALSE(v.append(many.data(), many.size()));
  EXPECT_EQ(v.size(), n);
}

}  // namespace
}  // namespace ckpt
