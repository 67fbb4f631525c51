#include "base/locks/lock_ranks.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include "base/locks/crowd_gate.h"
#include "base/locks/futex.h"
#include "base/locks/turn_lock.h"

namespace ckpt {
namespace {

using lock_ranks::may_be_inside;

TEST(LockTable, WhatIsInsideOfAnInnerLockIsInsideOfTheOuterOne) {
  EXPECT_EQ(may_be_inside(LockRank::kBufferPool), 0u);
  EXPECT_EQ(may_be_inside(LockRank::kCrowd), lock_ranks::ranks(LockRank::kTurn, LockRank::kFutexHold));
  EXPECT_NE(may_be_inside(LockRank::kMappingGate) & lock_ranks::bit(LockRank::kBufferPool), 0u);
  EXPECT_EQ(may_be_inside(LockRank::kTurn) & lock_ranks::bit(LockRank::kCrowd), 0u);
}

// Where the order is wrong the process aborts: in a build with NDEBUG nobody looks.
class LockOrder : public testing::Test {
 protected:
  void SetUp() override {
#ifdef NDEBUG
    GTEST_SKIP() << "the order of locks is checked in builds without NDEBUG";
#endif
  }

  FutexLock<LockRank::kRequests> requests_;
  FutexLock<LockRank::kStatistics> statistics_;
  FutexLock<LockRank::kCallbacks> callbacks_;
  FutexLock<LockRank::kServing> serving_;
  FutexLock<LockRank::kBufferPool> pool_;
  CrowdGate<LockRank::kCrowd> crowd_;
  TurnLock<LockRank::kTurn> turn_;
};

TEST_F(LockOrder, IsKept) {
  for (int round = 0; round < 2; ++round) {
    ScopedLock outer(requests_);
    ScopedLock inner(statistics_);
  }
  {
    ScopedCrowdTurn turn(crowd_, turn_);
    turn_.yield();
  }
  // The other way round, but one after the other.
  ScopedLock first(statistics_);
}

// A test that dies is a process of its own, whose thread has another id: it takes all locks itself.
TEST_F(LockOrder, NamesBothLocksWhereItIsWrong) {
  EXPECT_DEATH(
      {
        ScopedLock held(statistics_);
        ScopedLock wrong(requests_);
      },
      "agent's queue of requests may be taken inside statistics lock. does not hold");
  EXPECT_DEATH(
      {
        ScopedLock held(pool_);
        ScopedCrowdTurn wrong(crowd_, turn_);
      },
      "guarded memory's crowd may be taken inside BufferPool lock");
}

TEST_F(LockOrder, IsWrongAlsoDownwardsWhereTheOuterLockDoesNotNameTheInnerOne) {
  EXPECT_DEATH(
      {
        ScopedLock held(requests_);
        ScopedLock wrong(serving_);
      },
      "serving lock may be taken inside agent's queue of requests");
}

TEST_F(LockOrder, OuterLocksMayBeGivenBackFirst) {
  auto give_back = [&] {
    requests_.lock();
    statistics_.lock();
    requests_.unlock();
  };
  EXPECT_DEATH(
      {
        give_back();
        ScopedLock wrong(callbacks_);
      },
      "callbacks lock may be taken inside statistics lock");
  give_back();
  statistics_.unlock();
  ScopedLock now(callbacks_);
}

TEST_F(LockOrder, EachLockThatIsHeldCounts) {
  EXPECT_DEATH(
      {
        ScopedLock outer(serving_);
        ScopedLock inner(pool_);
        lock_ranks::takes(LockRank::kFilledQueue);
      },
      "FilledQueue lock may be taken inside BufferPool lock");
}

TEST_F(LockOrder, NoneIsTakenTwice) {
  EXPECT_DEATH(
      {
        ScopedLock held(pool_);
        lock_ranks::takes(LockRank::kBufferPool);
      },
      "BufferPool lock may be taken inside BufferPool lock");
}

TEST_F(LockOrder, HoldsWhereTheHolderOfATurnLetsOthersIn) {
  auto yield_inside = [&] {
    ScopedTurn held(turn_);
    lock_ranks::takes(LockRank::kFutexHold);
    turn_.yield();
  };
  EXPECT_DEATH(yield_inside(), "guarded memory's turn may be taken inside hold of futexes");
}

TEST_F(LockOrder, HoldsForAWaitThatTakesNothing) {
  EXPECT_DEATH(
      {
        ScopedLock held(callbacks_);
        lock_ranks::waits_for(LockRank::kForkHold);
      },
      "hold of fork may be taken inside callbacks lock");
  lock_ranks::waits_for(LockRank::kForkHold);
  ScopedLock outer(requests_);
  ScopedLock inner(statistics_);
}

TEST_F(LockOrder, IsOfEachThread) {
  ScopedLock held(pool_);
  std::thread([&] { ScopedLock other(statistics_); }).join();
}

TEST_F(LockOrder, CountsAHandlerToTheThreadThatItInterrupts) {
  static constinit FutexLock<LockRank::kExcludedMemory> in_handler;
  signal(SIGUSR1, [](int) { ScopedLock lock(in_handler); });
  raise(SIGUSR1);
  EXPECT_DEATH(
      {
        ScopedLock held(callbacks_);
        raise(SIGUSR1);
      },
      "excluded_memory lock may be taken inside callbacks lock");
  signal(SIGUSR1, SIG_DFL);
}

// Those for which there is no place hold their locks all the same.
TEST_F(LockOrder, MayBeKeptByMoreThreadsThanHavePlaces) {
  constexpr uint32_t kThreads = 100;
  std::atomic<uint32_t> inside{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      FutexLock<LockRank::kServing> outer;
      FutexLock<LockRank::kBufferPool> inner;
      ScopedLock first(outer);
      ScopedLock second(inner);
      ++inside;
      while (inside != kThreads) std::this_thread::yield();
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_DEATH(
      {
        ScopedLock held(pool_);
        ScopedLock wrong(statistics_);
      },
      "statistics lock may be taken inside BufferPool lock")
      << "the places are not free again";
}

TEST_F(LockOrder, BeginsAnewWhereNobodyHoldsALock) {
  auto begin_anew = [&] {
    pool_.lock();
    lock_ranks::forget();
    statistics_.lock();
    pool_.unlock();
  };
  EXPECT_DEATH(
      {
        begin_anew();
        ScopedLock wrong(callbacks_);
      },
      "callbacks lock may be taken inside statistics lock");
  begin_anew();
  statistics_.unlock();
}

}  // namespace
}  // namespace ckpt
