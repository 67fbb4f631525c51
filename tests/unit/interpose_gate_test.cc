#include "libckpt_rt/interpose/memory/gate.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

namespace ckpt {
namespace {

// How often a thread of this process has gone to sleep, if it sleeps in a futex now; -1 if it does not.
long sleeps_in_futex(pid_t tid) {
  const std::string task = "/proc/self/task/" + std::to_string(tid);
  int call = -1;
  std::ifstream(task + "/syscall") >> call;
  if (call != SYS_futex) return -1;
  std::ifstream status(task + "/status");
  const std::string name = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stol(line.substr(name.size()));
  }
  return -1;
}

// A thread at the gate sleeps for at most a second; then it asks whether there is still somebody to open it,
// and sleeps again.
template <typename Held>
void expect_to_wait() {
  std::atomic<pid_t> tid{0};
  std::atomic<bool> entered{false}, opened{false};
  std::thread thread;
  {
    Held held;
    thread = std::thread([&] {
      tid = gettid();
      MappingChange change;
      EXPECT_TRUE(opened);
      entered = true;
    });
    // Until it has asked twice, and sleeps once more. A thread that went through has failed already.
    for (long first = -1, now = -1; !entered && (first < 0 || now < first + 2); std::this_thread::yield()) {
      now = tid == 0 ? -1 : sleeps_in_futex(tid);
      if (first < 0) first = now;
    }
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
