// The threads that are in fork(2), as fork_hold counts them: also those of processes that share the memory,
// and are killed.
#include "libckpt_rt/core/process/fork/fork_hold.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <iterator>
#include <latch>
#include <thread>
#include <vector>

#include "libckpt_rt/core/process/fork/own_page.h"

namespace ckpt {
namespace {

OwnPage page_of_test;

}  // namespace

namespace own_page {

OwnPage* page = &page_of_test;

}  // namespace own_page

namespace {

bool can_hold() {
  const bool held = fork_hold::hold();
  if (held) fork_hold::release();
  return held;
}

// A process with the memory of this one, which enters and stays there.
class Inside {
 public:
  Inside() {
    pid_ = clone(
        [](void* self) {
          auto* inside = static_cast<Inside*>(self);
          fork_hold::begin();
          inside->entered_.store(1);
          for (;;) sched_yield();
          return 0;
        },
        std::end(stack_), CLONE_VM | SIGCHLD, this);
    while (entered_.load() == 0) sched_yield();
  }
  ~Inside() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void kill_only() const {
    kill(pid_, SIGKILL);
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT);
  }

 private:
  alignas(16) char stack_[16 << 10];
  std::atomic<int> entered_{0};
  pid_t pid_;
};

TEST(ForkHold, AThreadInsideIsWaitedFor) {
  EXPECT_TRUE(can_hold());
  fork_hold::begin();
  EXPECT_TRUE(fork_hold::any_inside());
  EXPECT_FALSE(can_hold());
  // As a signal handler that forks in between.
  fork_hold::begin();
  fork_hold::end();
  EXPECT_TRUE(fork_hold::any_inside());
  // A hold waits for a tenth of a second, and the thread inside may be without a processor for longer.
  std::atomic<bool> ended = false;
  std::thread holds([&] {
    for (bool held = false; !held;) {
      const bool had_ended = ended;
      held = can_hold();
      if (!held && had_ended) {
        ADD_FAILURE() << "nobody is inside, and it cannot be held";
        break;
      }
    }
    EXPECT_FALSE(fork_hold::any_inside());
  });
  fork_hold::end();
  ended = true;
  holds.join();
}

TEST(ForkHold, WhoComesWhileItIsHeldWaits) {
  ASSERT_TRUE(fork_hold::hold());
  std::atomic<bool> released = false;
  std::thread comes([&] {
    fork_hold::begin();
    EXPECT_TRUE(released.load());
    fork_hold::end();
  });
  released = true;
  fork_hold::release();
  comes.join();
  EXPECT_FALSE(fork_hold::any_inside());
}

TEST(ForkHold, AProcessWithThisMemoryIsWaitedForUntilItIsKilled) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer knows nothing of another process with its memory";
#endif
  for (const bool is_reaped : {false, true}) {
    {
      const Inside inside;
      EXPECT_TRUE(fork_hold::any_inside());
      EXPECT_FALSE(can_hold());
      inside.kill_only();
      if (!is_reaped) {
        EXPECT_TRUE(can_hold());
      }
    }
    EXPECT_FALSE(fork_hold::any_inside());
    EXPECT_TRUE(can_hold());
  }
}

TEST(ForkHold, MoreThanThereArePlaces) {
  constexpr size_t kMany = OwnPage::kForkPlaces + 8;
  std::latch entered(kMany), leave(1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kMany; ++i) {
    threads.emplace_back([&] {
      fork_hold::begin();
      entered.count_down();
      leave.wait();
      fork_hold::end();
    });
  }
  entered.wait();
  EXPECT_FALSE(can_hold());
  leave.count_down();
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(fork_hold::any_inside());
  EXPECT_TRUE(can_hold());
}

TEST(ForkHold, AnEndWithoutABeginningIsNone) {
  fork_hold::end();
  EXPECT_FALSE(fork_hold::any_inside());
  fork_hold::begin();
  fork_hold::reset();
  EXPECT_FALSE(fork_hold::any_inside());
  fork_hold::end();
  EXPECT_TRUE(can_hold());
}

}  // namespace
}  // namespace ckpt
