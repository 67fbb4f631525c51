#include "libckpt_rt/interpose/memory/gate.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace ckpt {
namespace {

// Longer than a thread waits without asking whether there is still somebody to open the gate.
constexpr std::chrono::milliseconds kLong{2500};

template <typename Held>
void expect_to_wait() {
  std::atomic<bool> entered{false}, opened{false};
  std::thread thread;
  {
    Held held;
    thread = std::thread([&] {
      MappingChange change;
      EXPECT_TRUE(opened);
      entered = true;
    });
    std::this_thread::sleep_for(kLong);
    EXPECT_FALSE(entered);
    opened = true;
  }
  thread.join();
  EXPECT_TRUE(entered);
}

TEST(MappingGate, StaysShutHoweverLongItIsHeld) { expect_to_wait<MappingsHeld>(); }
TEST(MappingGate, StaysShutHoweverLongItIsBarred) { expect_to_wait<MappingsBarred>(); }

TEST(MappingGate, AChildThatNobodyOpensItForGoesOn) {
  MappingsHeld held;
  const pid_t child = static_cast<pid_t>(syscall(SYS_fork));  // past libc, and what it does in a child
  if (child == 0) {
    alarm(60);
    { MappingChange change; }
    _exit(0);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ckpt
