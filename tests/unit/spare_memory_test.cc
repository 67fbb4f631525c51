#include "libckpt_rt/protect/spare_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/memory/arena.h"
#include "copier/buffer_pool.h"

namespace ckpt {
namespace {

using Use = SpareMemory::Use;
constexpr uint64_t kMiB = 1 << 20;

AddrRange map_full(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return {};
  std::memset(p, 0xab, bytes);
  return {Addr::of(p), Addr::of(p) + bytes};
}

// -1: not all of it is mapped.
long pages_there(AddrRange range) {
  std::vector<unsigned char> there(range.size() / kPageSize);
  if (mincore(range.start.as<void>(), range.size(), there.data()) != 0) return -1;
  long count = 0;
  for (unsigned char page : there) count += page & 1;
  return count;
}

TEST(SpareMemory, KeepsWhatWasTouchedUpToItsBound) {
  SpareMemory spare;
  const AddrRange block = map_full(4 * SpareMemory::kMostTouched);
  ASSERT_FALSE(block.empty());
  const AddrRange touched{block.start + kMiB, block.end};
  spare.give(Use::kBuffers, {block, touched});
  EXPECT_EQ(spare.range(Use::kBuffers), block);
  const auto again = spare.take(Use::kBuffers, block.size(), block.size());
  ASSERT_EQ(again.range, block);
  EXPECT_EQ(again.touched, (AddrRange{touched.start, touched.start + SpareMemory::kMostTouched}));
  EXPECT_EQ(*again.touched.start.as<unsigned char>(), 0xab);
  EXPECT_EQ(pages_there({again.touched.end, block.end}), 0);
  EXPECT_TRUE(spare.range(Use::kBuffers).empty());
  spare.give(Use::kBuffers, again);
  spare.release();
  EXPECT_EQ(pages_there(block), -1);
}

TEST(SpareMemory, OfAnotherSizeIsUnmapped) {
  SpareMemory spare;
  for (const auto& [least, most] : {std::pair{3 * kMiB, 9 * kMiB}, std::pair{kMiB, kMiB}}) {
    const AddrRange block = map_full(2 * kMiB);
    spare.give(Use::kLists, {block, block});
    EXPECT_TRUE(spare.take(Use::kLists, least, most).range.empty());
    EXPECT_EQ(pages_there(block), -1);
  }
}

// The next owner relies on zeros there.
TEST(SpareMemory, WhatKeepsItsPagesIsUnmapped) {
  SpareMemory spare;
  const AddrRange block = map_full(2 * kMiB);
  // Not mlock(3): under a sanitizer that does nothing.
  if (syscall(SYS_mlock, block.start.as<void>(), block.size()) != 0) GTEST_SKIP() << "may not lock memory";
  spare.give(Use::kLists, {block, {block.start, block.start + kMiB}});
  EXPECT_TRUE(spare.range(Use::kLists).empty());
  EXPECT_EQ(pages_there(block), -1);
}

TEST(SpareMemory, AnArenaGoesOnInTheBlockOfAnother) {
  Arena first, second;
  ASSERT_TRUE(first.reserve(kMiB));
  ASSERT_NE(first.allocate(5000), nullptr);
  AddrRange touched;
  const AddrRange block = first.hand_over(&touched);
  EXPECT_EQ(touched, (AddrRange{block.start, block.start + 5000}));
  EXPECT_EQ(first.allocate(1), nullptr);
  second.adopt(block);
  EXPECT_EQ(Addr::of(second.allocate(kMiB)), block.start);
}

// All buffers are free there, whoever had one of the pool before, and the pages of those that were populated
// are there.
TEST(SpareMemory, APoolGoesOnInTheMemoryOfAnother) {
  constexpr size_t kBytes = 8 * kMiB, kBuffer = 64 << 10;
  AddrRange memory, touched;
  {
    BufferPool pool;
    ASSERT_TRUE(pool.reserve(kBytes, kBuffer));
    pool.populate(2 * kMiB);
    uint32_t buffer = 0;
    ASSERT_TRUE(pool.try_acquire_some(CopyKind::kForced, {&buffer, 1}) == 1);
    memory = pool.hand_over(&touched);
    EXPECT_TRUE(pool.range().empty());
  }
  EXPECT_EQ(memory.size(), BufferPool::memory_bytes(kBytes, kBuffer));
  EXPECT_EQ(touched.size(), 2 * kMiB);
  BufferPool pool;
  pool.adopt(memory, touched, kBytes, kBuffer);
  EXPECT_EQ(pool.buffers(), kBytes / kBuffer);
  EXPECT_TRUE(pool.all_free());
  EXPECT_EQ(pool.populated(), touched);
  EXPECT_EQ(pages_there(touched), static_cast<long>(touched.size() / kPageSize));
  pool.populate(kMiB);
  EXPECT_EQ(pool.populated(), touched) << "what is there is not asked for";
  pool.release_memory();
  EXPECT_EQ(pages_there(memory), -1);
}

}  // namespace
}  // namespace ckpt
