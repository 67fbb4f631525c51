// The adapted window: stragglers do not close it, and a window that is too small opens again.
#include "timewarp/engine/window.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ckpt::timewarp {

namespace {

constexpr uint64_t kEvents = 2048;  // of a round that is judged
constexpr double kGvt = 8;

// What a thread tells its window in one round.
class Thread {
 public:
  explicit Thread(double width) : window(width) {}
  void round(double undone) {
    executed_ += kEvents;
    rolled_back_ += static_cast<uint64_t>(undone * kEvents);
    window.judge(kGvt, executed_, rolled_back_);
  }
  Window window;

 private:
  uint64_t executed_ = 0, rolled_back_ = 0;
};

TEST(Window, IsNotClosedByAStragglerExecutedLast) {
  Thread thread(0);
  thread.window.ran_to(kGvt + 2, false);
  thread.window.ran_to(kGvt + 1e-9, false);  // the last batch: a straggler just above GVT
  thread.round(0.5);
  EXPECT_EQ(thread.window.width(), 1);
}

TEST(Window, OpensAgainWhereItHoldsAThreadBack) {
  Thread thread(0);
  thread.window.ran_to(kGvt + 1e-9, false);
  thread.round(0.5);
  ASSERT_LT(thread.window.width(), 1e-9);
  // Nothing above GVT is ever executed through such a window.
  int rounds = 0;
  for (; thread.window.width() < 1 && rounds < 100; ++rounds) {
    thread.window.ran_to(kGvt - 1, true);
    thread.round(0);
  }
  EXPECT_LE(rounds, 40);
}

TEST(Window, DoesNotGrowBeyondWhatIsUsed) {
  Thread thread(0);
  thread.window.ran_to(kGvt + 1, false);
  thread.round(0.5);
  for (int i = 0; i < 100; ++i) {
    thread.window.ran_to(kGvt + 1, false);
    thread.round(0);
  }
  EXPECT_GT(thread.window.width(), 2);
  EXPECT_LT(thread.window.width(), 8);
}

TEST(Window, ShrinksWhileMuchIsUndone) {
  Thread thread(0);
  thread.window.ran_to(kGvt + 1, true);
  thread.round(0.1);
  double before = thread.window.width();
  EXPECT_LT(before, 1);
  for (int i = 0; i < 20; ++i) {
    thread.window.ran_to(kGvt + 1, true);
    thread.round(0.1);
    EXPECT_LT(thread.window.width(), before);
    before = thread.window.width();
  }
}

TEST(Window, OfAGivenWidthStays) {
  Thread thread(3);
  for (double undone : {0.9, 0.0}) {
    thread.window.ran_to(kGvt + 1, true);
    thread.round(undone);
    EXPECT_EQ(thread.window.width(), 3);
  }
  EXPECT_TRUE(std::isinf(Thread(0).window.width()));
}

}  // namespace

}  // namespace ckpt::timewarp
