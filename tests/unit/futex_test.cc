#include "base/locks/futex.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ckpt {
namespace {

TEST(Futex, DoesNotSleepOnAnotherValueAndEndsInTime) {
  FutexWord word{7};
  timespec none{0, 0};
  EXPECT_EQ(futex_wait(word, 6), -EAGAIN);
  EXPECT_EQ(futex_wait(word, 7, &none), -ETIMEDOUT);
  EXPECT_EQ(futex_wake(word), 0);
}

TEST(Futex, WakesAsManyAsAsked) {
  constexpr int kThreads = 4;
  FutexWord word{0};
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (word.load() == 0) futex_wait(word, 0);
      ++woken;
    });
  }
  // Each call reports how many it woke: one of a time, until all four have been asleep and woken.
  for (int left = kThreads; left > 0;) {
    long n = futex_wake(word, 1);
    ASSERT_LE(n, 1);
    if (n == 1) --left;
    std::this_thread::yield();
  }
  EXPECT_EQ(woken.load(), 0) << "the word has not changed: they went back to sleep";
  word = 1;
  futex_wake(word);
  for (auto& t : threads) t.join();
  EXPECT_EQ(woken.load(), kThreads);
}

TEST(FutexLock, LetsOneInAtATime) {
  constexpr int kThreads = 6, kRounds = 20'000;
  FutexLock<LockRank::kBufferPool> lock;
  uint64_t plain = 0;  // a data race if the lock does not hold
  int inside = 0;
  std::atomic<int> strange{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        ScopedLock guard(lock);
        if (++inside != 1) ++strange;
        ++plain;
        // Now and then a holder loses its processor, so that the others go to sleep.
        if (i % 64 == 0) std::this_thread::yield();
        --inside;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(plain, uint64_t{kThreads} * kRounds);
  EXPECT_EQ(strange.load(), 0);
}

}  // namespace
}  // namespace ckpt
