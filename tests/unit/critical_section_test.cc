#include "libckpt_rt/stop/critical_section.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>
#include <x86intrin.h>

#include <atomic>

namespace ckpt {
namespace {

TEST(CriticalSection, Nests) {
  const int tid = gettid();
  EXPECT_FALSE(critical_section::leave(tid));
  EXPECT_TRUE(critical_section::enter(tid));
  EXPECT_TRUE(critical_section::enter(tid));
  EXPECT_TRUE(critical_section::leave(tid));
  EXPECT_TRUE(critical_section::inside(tid));
  EXPECT_FALSE(critical_section::none_inside());
  EXPECT_TRUE(critical_section::leave(tid));
  EXPECT_FALSE(critical_section::inside(tid));
  EXPECT_TRUE(critical_section::none_inside());
}

std::atomic<int> steps{0}, at{0};
std::atomic<bool> served{true};

constexpr long long kTrapFlag = 1 << 8;  // SIGTRAP after each instruction, but for those of its handler

void enter_and_leave(int, siginfo_t*, void* context) {
  if (steps++ != at) return;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  const int tid = gettid();
  served = critical_section::enter(tid) && critical_section::inside(tid) && critical_section::leave(tid);
}

// Both functions are async-signal-safe: a handler that enters and leaves comes at their instructions, one
// after the other.
TEST(CriticalSection, HandlersEnterAndLeaveInTheMiddle) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a handler between two instructions of the sanitizer waits for a lock of the sanitizer "
                  "that its thread holds";
#endif
  struct sigaction action {
  }, before;
  action.sa_sigaction = &enter_and_leave;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
  const int tid = gettid();
  // First none comes. Ahead of the last instructions there is but the search for a free entry: not each of
  // those.
  constexpr int kLast = 150;
  at = -1;
  for (int all = 0; !HasFailure();) {
    steps = 0;
    __writeeflags(__readeflags() | kTrapFlag);
    const bool entered = critical_section::enter(tid), left = critical_section::leave(tid);
    __writeeflags(__readeflags() & ~kTrapFlag);
    EXPECT_TRUE(served && entered && left) << "at instruction " << at;
    EXPECT_FALSE(critical_section::inside(tid)) << "at instruction " << at;
    EXPECT_TRUE(critical_section::none_inside()) << "at instruction " << at;
    if (all == 0) {
      all = steps;
      at = all;
      EXPECT_GT(all, kLast);
    }
    at = at - (at > all - kLast ? 1 : 16);
    if (at < 0) break;
  }
  sigaction(SIGTRAP, &before, nullptr);
}

}  // namespace
}  // namespace ckpt
