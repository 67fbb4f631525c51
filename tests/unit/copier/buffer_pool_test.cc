#include "copier/buffer_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ckpt {
namespace {

constexpr size_t kBytes = 4 * kPageSize;

TEST(BufferPool, HandsOutEveryBufferOnce) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(16 * kBytes + kBytes - 1, kBytes));
  EXPECT_EQ(pool.buffers(), 16u);
  EXPECT_TRUE(pool.all_free());
  std::set<uint32_t> numbers;
  for (uint32_t i = 0; i < 16; ++i) {
    uint32_t b = pool.acquire(CopyKind::kForced);
    ASSERT_TRUE(numbers.insert(b).second) << b;
    std::memset(pool.data(b), static_cast<int>(b), kBytes);
  }
  for (uint32_t b : numbers) {
    for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(pool.data(b)[i], std::byte{static_cast<unsigned char>(b)});
    ASSERT_TRUE(pool.range().contains(Addr::of(pool.data(b))));
  }
  EXPECT_FALSE(pool.all_free());
  for (uint32_t b : numbers) pool.release(b);
  EXPECT_TRUE(pool.all_free());
  EXPECT_EQ(pool.forced_waits(), 0u);
  pool.release_memory();
}

TEST(BufferPool, CopiesInOrderKeepToTheirLimitAndUseTheSameBuffers) {
  constexpr size_t kMiB = 1 << 20;
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(16 * kMiB, kMiB));
  uint32_t buffer = 0;
  std::vector<uint32_t> taken;
  while (pool.try_acquire_some(CopyKind::kSequential, {&buffer, 1}) == 1) taken.push_back(buffer);
  EXPECT_EQ(taken.size(), 12u);
  for (uint32_t b : taken) pool.release(b);
  pool.limit_sequential();
  const std::set<uint32_t> most_recent(taken.end() - 6, taken.end());
  taken.clear();
  while (pool.try_acquire_some(CopyKind::kSequential, {&buffer, 1}) == 1) taken.push_back(buffer);
  EXPECT_EQ(std::set<uint32_t>(taken.begin(), taken.end()), most_recent);
  std::set<uint32_t> forced;
  while (pool.try_acquire_some(CopyKind::kForced, {&buffer, 1}) == 1) forced.insert(buffer);
  EXPECT_EQ(forced.size(), 10u);
  EXPECT_EQ(pool.sequential_waits() + pool.forced_waits(), 0u);
  for (uint32_t b : taken) pool.release(b);
  for (uint32_t b : forced) pool.release(b);
  EXPECT_TRUE(pool.all_free());
  pool.release_memory();
}

TEST(BufferPool, ALimitAboveThreeQuartersLimitsNothing) {
  constexpr size_t kMiB = 1 << 20;
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(4 * kMiB, kMiB));
  pool.limit_sequential();
  uint32_t some[4];
  EXPECT_EQ(pool.try_acquire_some(CopyKind::kSequential, some), 3u);
  pool.release_memory();
}

// The copier has filled its share and waits. The writer has taken all it could: the sink holds what it may,
// and one more copy would make a batch. If the copier did not go on now, each would wait for the other.
TEST(BufferPool, TheCopierGoesOnWhileTheWriterWaitsForABatch) {
  std::vector<size_t> counts;
  for (size_t n = 1; n <= 40; ++n) counts.push_back(n);
  counts.insert(counts.end(), {64, 100, 127, 128, 129, 256, 1024, 1500});
  for (size_t bytes = kPageSize; bytes <= 64 * kPageSize; bytes *= 2) {
    for (size_t count : counts) {
      for (bool limited : {false, true}) {
        BufferPool pool;
        ASSERT_TRUE(pool.reserve(count * bytes, bytes));
        if (limited) pool.limit_sequential();
        std::vector<uint32_t> taken(count);
        taken.resize(pool.try_acquire_some(CopyKind::kSequential, taken));
        ASSERT_GE(taken.size(), 1u);
        std::thread copier([&] { pool.release(pool.acquire(CopyKind::kSequential)); });
        while (pool.sequential_waits() == 0) std::this_thread::yield();
        const size_t in_use = pool.most_held() + pool.batch() - 1;
        EXPECT_LT(in_use, taken.size()) << count << " of " << bytes << (limited ? ", limited" : "");
        for (; taken.size() > in_use; taken.pop_back()) pool.release(taken.back());
        copier.join();
        for (; !taken.empty(); taken.pop_back()) pool.release(taken.back());
        EXPECT_TRUE(pool.all_free());
        pool.release_memory();
      }
    }
  }
}

TEST(BufferPool, KeepsAQuarterForForcedCopies) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(16 * kBytes, kBytes));
  std::vector<uint32_t> taken;
  for (int i = 0; i < 12; ++i) taken.push_back(pool.acquire(CopyKind::kSequential));
  EXPECT_EQ(pool.sequential_waits(), 0u);
  std::atomic<int> got{-1};
  std::thread copier([&] { got = static_cast<int>(pool.acquire(CopyKind::kSequential)); });
  while (pool.sequential_waits() == 0 && got == -1) std::this_thread::yield();
  EXPECT_EQ(got.load(), -1) << "a buffer of the reserve";
  // The reserve is there for faults, while the sequential copier waits, and for them alone.
  for (int i = 0; i < 4; ++i) taken.push_back(pool.acquire(CopyKind::kForced));
  EXPECT_EQ(pool.forced_waits(), 0u);
  EXPECT_EQ(got.load(), -1);
  // Four come back: still only the reserve is free. The fifth is the copier's.
  for (int i = 0; i < 4; ++i) {
    pool.release(taken.back());
    taken.pop_back();
  }
  EXPECT_EQ(got.load(), -1);
  pool.release(taken.back());
  taken.pop_back();
  copier.join();
  EXPECT_EQ(pool.sequential_waits(), 1u) << "one wait, however often it was woken";
  pool.release(static_cast<uint32_t>(got.load()));
  for (uint32_t b : taken) pool.release(b);
  EXPECT_TRUE(pool.all_free());
  pool.reset_counters();
  EXPECT_EQ(pool.sequential_waits(), 0u);
  pool.release_memory();
}

TEST(BufferPool, SeveralAtOnceLeaveTheReserveToo) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(16 * kPageSize, kPageSize));
  uint32_t some[5], rest[16];
  ASSERT_EQ(pool.try_acquire_some(CopyKind::kSequential, some), 5u);
  ASSERT_EQ(pool.try_acquire_some(CopyKind::kSequential, rest), 7u);
  EXPECT_EQ(pool.try_acquire_some(CopyKind::kSequential, some), 0u);
  std::set<uint32_t> all(some, some + 5);
  all.insert(rest, rest + 7);
  EXPECT_EQ(all.size(), 12u);
  EXPECT_EQ(pool.try_acquire_some(CopyKind::kForced, rest), 4u);
  EXPECT_EQ(pool.try_acquire_some(CopyKind::kForced, rest), 0u);
  pool.release_memory();
}

TEST(BufferPool, ACopierThatWaitedGoesOnWhenThereIsRoomForSeveral) {
  BufferPool pool;
  ASSERT_TRUE(
      pool.reserve(32 * kBytes, kBytes));  // 24 for copies in order: it goes on when 3 of them are free
  std::vector<uint32_t> taken;
  for (int i = 0; i < 24; ++i) taken.push_back(pool.acquire(CopyKind::kSequential));
  std::atomic<bool> got{false};
  std::thread copier([&] {
    const uint32_t b = pool.acquire(CopyKind::kSequential);
    got = true;
    pool.release(b);
  });
  while (pool.sequential_waits() == 0) std::this_thread::yield();
  // Two are free, again and again, and it sleeps on.
  for (int round = 0; round < 2000 && !got; ++round) {
    for (int i = 0; i < 2; ++i) pool.release(taken[23 - static_cast<size_t>(i)]);
    std::this_thread::yield();
    for (int i = 0; i < 2; ++i) taken[23 - static_cast<size_t>(i)] = pool.acquire(CopyKind::kForced);
  }
  EXPECT_FALSE(got.load());
  for (int i = 0; i < 3; ++i) {
    pool.release(taken.back());
    taken.pop_back();
  }
  copier.join();
  for (uint32_t b : taken) pool.release(b);
  EXPECT_TRUE(pool.all_free());
  pool.release_memory();
}

// Both kinds wait: the one buffer that comes back must reach the forced copy, which alone
// may take it.
TEST(BufferPool, ABufferReachesTheForcedCopyBesideASequentialOne) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(4 * kBytes, kBytes));
  for (int round = 0; round < 300; ++round) {
    pool.reset_counters();
    uint32_t all[4];
    for (uint32_t& b : all) b = pool.acquire(CopyKind::kForced);
    std::atomic<bool> sequential_done{false};
    std::thread sequential([&] {
      uint32_t b = pool.acquire(CopyKind::kSequential);
      sequential_done = true;
      pool.release(b);
    });
    std::atomic<int> forced_got{-1};
    std::thread forced([&] { forced_got = static_cast<int>(pool.acquire(CopyKind::kForced)); });
    while (pool.sequential_waits() == 0 || pool.forced_waits() == 0) std::this_thread::yield();
    pool.release(all[0]);
    forced.join();
    ASSERT_EQ(forced_got.load(), static_cast<int>(all[0]));
    ASSERT_FALSE(sequential_done.load());
    for (int i = 1; i < 4; ++i) pool.release(all[i]);
    pool.release(static_cast<uint32_t>(forced_got.load()));
    sequential.join();
    ASSERT_TRUE(pool.all_free());
  }
  pool.release_memory();
}

// A lost wake-up would leave the thread asleep, and this test without an end.
TEST(BufferPool, AnInterruptedWaitLooksAroundAndGoesOn) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(4 * kBytes, kBytes));
  uint32_t all[4];
  for (uint32_t& b : all) b = pool.acquire(CopyKind::kForced);
  pool.interrupt();  // nobody waits
  std::atomic<uint32_t> looks{0};
  std::atomic<bool> got{false};
  std::thread server([&] {
    const uint32_t b = pool.acquire_forced(
        [](void* self) { static_cast<std::atomic<uint32_t>*>(self)->fetch_add(1); }, &looks);
    got = true;
    pool.release(b);
  });
  for (uint32_t round = 1; round <= 20'000; ++round) {
    while (looks < round) std::this_thread::yield();
    pool.interrupt();
  }
  EXPECT_FALSE(got.load()) << "no buffer was free";
  EXPECT_EQ(pool.forced_waits(), 1u) << "one wait, however often it was interrupted";
  pool.release(all[0]);
  server.join();
  EXPECT_TRUE(got.load());
  for (int i = 1; i < 4; ++i) pool.release(all[i]);
  EXPECT_TRUE(pool.all_free());
  pool.release_memory();
}

TEST(BufferPool, NobodySleepsOnWhileBuffersAreFree) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(5 * kBytes, kBytes));
  std::vector<int> holder(pool.buffers(), 0);  // a data race if two hold one buffer
  std::atomic<int> strange{0};
  std::vector<std::thread> threads;
  for (int t = 1; t <= 6; ++t) {
    threads.emplace_back([&, t] {
      unsigned random = static_cast<unsigned>(t);
      for (int i = 0; i < 4000; ++i) {
        uint32_t b = pool.acquire(t % 2 == 0 ? CopyKind::kForced : CopyKind::kSequential);
        if (holder[b] != 0) ++strange;
        holder[b] = t;
        if (rand_r(&random) % 8 == 0) std::this_thread::yield();
        if (holder[b] != t) ++strange;
        holder[b] = 0;
        pool.release(b);
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(strange.load(), 0);
  EXPECT_TRUE(pool.all_free());
  pool.release_memory();
}

TEST(BufferPool, GivesItsPagesBack) {
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(4 * kBytes, kBytes));
  pool.release(pool.acquire(CopyKind::kForced));
  pool.release_memory();
  EXPECT_TRUE(pool.range().empty());
  BufferPool impossible;
  EXPECT_FALSE(impossible.reserve(1ull << 60, kBytes));
}

bool is_asleep(int tid) {
  std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_ends = text.rfind(") ");
  return name_ends != text.npos && text[name_ends + 2] == 'S';
}

// A thread that looks in vain gets a processor for nothing: with thousands of them nobody else does.
TEST(BufferPool, WhatComesBackWakesOneOfThoseWhoWaitForForcedCopies) {
  constexpr int kThreads = 40;
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(16 * kBytes, kBytes));
  std::vector<uint32_t> taken;
  uint32_t buffer = 0;
  while (pool.try_acquire_some(CopyKind::kForced, {&buffer, 1}) == 1) taken.push_back(buffer);
  std::atomic<int> tids[kThreads]{}, got{0}, may_release{0};
  std::atomic<long> sleeps{0};
  std::vector<std::thread> threads;
  auto await = [](auto condition) {
    while (!condition()) std::this_thread::yield();
  };
  for (auto& tid : tids) {
    threads.emplace_back([&] {
      tid = gettid();
      rusage before{}, after{};
      getrusage(RUSAGE_THREAD, &before);
      const uint32_t mine = pool.acquire(CopyKind::kForced);
      getrusage(RUSAGE_THREAD, &after);
      sleeps += after.ru_nvcsw - before.ru_nvcsw;
      tid = 0;
      const int place = ++got;
      await([&] { return may_release >= place; });
      pool.release(mine);
    });
  }
  await([&] { return pool.forced_waits() == kThreads; });
  for (int served = 0;; ++served) {
    await([&] {
      return std::all_of(std::begin(tids), std::end(tids),
                         [](const auto& t) { return t == 0 || is_asleep(t); });
    });
    if (served == kThreads) break;
    if (served == 0) {
      pool.release(taken.back());
      taken.pop_back();
    } else {
      may_release = served;
    }
    await([&] { return got == served + 1; });
  }
  may_release = kThreads;
  for (auto& t : threads) t.join();
  // Each once; some more may wait for the pool's lock.
  EXPECT_LT(sleeps.load(), 3 * kThreads);
  for (uint32_t b : taken) pool.release(b);
  EXPECT_TRUE(pool.all_free());
  pool.release_memory();
}

}  // namespace
}  // namespace ckpt
