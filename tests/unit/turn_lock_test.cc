#include "base/locks/turn_lock.h"

#include "base/locks/crowd_gate.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ckpt {
namespace {

using GuardTurn = TurnLock<LockRank::kTurn>;
using GuardCrowd = CrowdGate<LockRank::kCrowd>;

constexpr int kThreads = 40;  // more than the groups that a wake tells apart

// A thread that asks for the lock again and again; what it does with it is `inside`.
class Asker {
 public:
  template <typename Inside>
  Asker(GuardTurn& lock, int rounds, Inside inside)
      : lock_(&lock), thread_([=, this, &lock] {
          tid_ = gettid();
          for (int i = 0; i < rounds; ++i) {
            asked_ = i + 1;
            lock.lock();
            had_ = i + 1;
            inside();
            lock.unlock();
          }
          done_ = true;
        }) {}
  ~Asker() { thread_.join(); }

  int had() const { return had_; }
  // Returns when it sleeps in the lock, or has had all its rounds.
  void await_asleep() const {
    while (!done_ && !(asked_ > had_ && sleeps_in_lock())) std::this_thread::yield();
  }

 private:
  // In futex(2), on a word of the lock: under a sanitizer it may sleep elsewhere before it has asked.
  bool sleeps_in_lock() const {
    std::ifstream file("/proc/self/task/" + std::to_string(tid_) + "/syscall");
    std::string call;
    uintptr_t word = 0;
    const auto lock = reinterpret_cast<uintptr_t>(lock_);
    return file >> call >> std::hex >> word && call == std::to_string(SYS_futex) && word >= lock &&
           word < lock + sizeof(GuardTurn);
  }

  const GuardTurn* lock_;
  std::atomic<int> tid_{0}, asked_{0}, had_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};
using Askers = std::vector<std::unique_ptr<Asker>>;

TEST(TurnLock, IsGivenInTheOrderInWhichItWasAskedFor) {
  GuardTurn lock;
  std::vector<int> order;  // a data race if the lock does not hold
  Askers askers;
  lock.lock();
  for (int i = 0; i < kThreads; ++i) {
    askers.push_back(std::make_unique<Asker>(lock, 1, [&order, i] { order.push_back(i); }));
    askers.back()->await_asleep();
  }
  EXPECT_TRUE(order.empty());
  lock.unlock();
  askers.clear();
  ASSERT_EQ(order.size(), size_t{kThreads});
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(TurnLock, YieldLetsInEachWhoWaitsOnceAndNoneTwice) {
  constexpr int kRounds = 100;
  GuardTurn lock;
  Askers askers;
  auto rounds_had = [&] {
    std::vector<int> had;
    for (auto& a : askers) had.push_back(a->had());
    return had;
  };
  lock.lock();
  for (int i = 0; i < kThreads; ++i) askers.push_back(std::make_unique<Asker>(lock, kRounds, [] {}));
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    for (auto& a : askers) a->await_asleep();
    EXPECT_EQ(rounds_had(), std::vector<int>(kThreads, round));
    lock.yield();
    // Each of them asks again at once, while the first of them are still being let in.
    EXPECT_EQ(rounds_had(), std::vector<int>(kThreads, round + 1));
  }
  lock.unlock();
}

TEST(TurnLock, YieldWithNobodyWaitingKeepsIt) {
  GuardTurn lock;
  lock.lock();
  for (int i = 0; i < 100; ++i) lock.yield();
  std::atomic<bool> inside{false};
  Asker asker(lock, 1, [&] { inside = true; });
  asker.await_asleep();
  EXPECT_FALSE(inside);
  lock.unlock();
}

TEST(TurnLock, LetsOneInAtATimeAndForgetsNobody) {
  constexpr int kRounds = 2'000;
  GuardTurn lock;
  uint64_t plain = 0;
  int inside = 0;
  std::atomic<int> strange{0};
  {
    Askers askers;
    for (int i = 0; i < kThreads; ++i) {
      askers.push_back(std::make_unique<Asker>(lock, kRounds, [&, i] {
        if (++inside != 1) ++strange;
        ++plain;
        // Now and then a holder loses its processor, or lets the others in.
        if (plain % 64 == 0) std::this_thread::yield();
        --inside;
        if (i == 0) lock.yield();
      }));
    }
  }
  EXPECT_EQ(plain, uint64_t{kThreads} * kRounds);
  EXPECT_EQ(strange.load(), 0);
}

TEST(TurnLock, TwoWhoAskAtTheSameInstantHaveTwoTurns) {
  constexpr int kRounds = 20'000;
  GuardTurn lock;
  std::atomic<int> arrived{0}, inside{0}, strange{0};
  auto ask = [&](int step) {
    for (int i = 1; i <= kRounds; ++i) {
      // The two threads meet without sleeping, for to be woken takes a hundred times as long as to ask. As
      // one of them leaves first, each waits for a while of its own.
      ++arrived;
      for (int looks = 0; arrived < 2 * i; ++looks) {
        if (looks > 1000) std::this_thread::yield();
      }
      for (std::atomic<int> left = i * step % 128; left > 0; --left) {
      }
      ScopedTurn turn(lock);
      if (++inside != 1) ++strange;
      --inside;
    }
  };
  std::thread other(ask, 3);
  ask(5);
  other.join();
  EXPECT_EQ(strange.load(), 0);
}

// However many ask, only a few of them are at the lock, and whoever holds it and lets them in is soon
// through.
TEST(CrowdGate, FewAreAtTheLockAndNobodyIsForgotten) {
  constexpr int kRounds = 500;
  GuardTurn lock;
  GuardCrowd gate;
  std::atomic<int> entered{0}, most{0};
  int inside = 0, had = 0;  // a data race if the lock does not hold
  std::atomic<int> strange{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        gate.enter();
        const int now = ++entered;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        {
          ScopedTurn turn(lock);
          if (++inside != 1) ++strange;
          if (++had % 64 == 0) std::this_thread::yield();
          --inside;
        }
        --entered;
        gate.leave();
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(had, kThreads * kRounds);
  EXPECT_EQ(strange.load(), 0);
  EXPECT_LE(most.load(), static_cast<int>(GuardCrowd::kMost));
}

// Whether threads that are free to run ever meet inside is the scheduler's affair; here they do.
TEST(CrowdGate, HoldsAsManyAsItSays) {
  GuardCrowd gate;
  std::atomic<uint32_t> entered{0}, may_leave{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < GuardCrowd::kMost; ++i) {
    threads.emplace_back([&, i] {
      gate.enter();
      ++entered;
      while (may_leave <= i) std::this_thread::yield();
      gate.leave();
    });
  }
  while (entered != GuardCrowd::kMost) std::this_thread::yield();
  std::atomic<bool> in{false};
  std::thread late([&] {
    gate.enter();
    in = true;
    gate.leave();
  });
  EXPECT_FALSE(in.load());
  may_leave = 1;
  late.join();
  EXPECT_TRUE(in.load());
  may_leave = GuardCrowd::kMost;
  for (auto& t : threads) t.join();
}

TEST(CrowdGate, TheHolderOfTheLockLetsInNoMoreThanTheGate) {
  GuardTurn lock;
  GuardCrowd gate;
  std::atomic<int> asked{0}, had{0};
  std::vector<std::thread> threads;
  lock.lock();
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ++asked;
      ScopedCrowdTurn turn(gate, lock);
      ++had;
    });
  }
  while (asked != kThreads) std::this_thread::yield();
  for (int last = 0; last < kThreads;) {
    lock.yield();
    const int now = had;
    EXPECT_LE(now - last, static_cast<int>(GuardCrowd::kMost));
    last = now;
  }
  lock.unlock();
  for (auto& t : threads) t.join();
}

}  // namespace
}  // namespace ckpt
