// Who waits before a process is made while a checkpoint holds that: threads of the process, and no other
// process with its memory, for whose end one of these threads may wait in the kernel.
#include "job/session/creation.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"

namespace ckpt {

void put_child_right() {}

namespace {

alignas(16) char stack[64 << 10];

// A child with this memory, made with these flags. True: it went through.
bool child_goes_on(int flags) {
  const pid_t child = clone(
      [](void*) {
        alarm(60);
        job::creation::await();
        job::creation::await_end();
        return 7;
      },
      std::end(stack), CLONE_VM | SIGCHLD | flags, nullptr);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

// In a process of its own, which is the one that holds.
template <typename Look>
void in_process(bool first_of_namespace, Look look) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer knows nothing of another process with its memory";
#endif
  const pid_t outer = fork();
  if (outer == 0) {
    // Process 1 of a namespace is killed by no signal that it does not catch.
    signal(SIGALRM, [](int) { _exit(3); });
    alarm(60);
    if (first_of_namespace && unshare(CLONE_NEWPID) != 0) _exit(77);
    const pid_t inner = fork();
    if (inner == 0) {
      alarm(60);
      this_process.pid = getpid();
      job::creation::hold();
      job::creation::hold_end();
      _exit(look() ? 0 : 1);
    }
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(outer, &status, 0), outer);
  if (status == 77 << 8) GTEST_SKIP() << "no pid namespace can be had";
  EXPECT_EQ(status, 0);
}

bool a_thread_sleeps_in_futex() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    int call = -1;
    std::ifstream(task.path() / "syscall") >> call;
    if (call == SYS_futex) return true;
  }
  return false;
}

bool thread_waits() {
  std::atomic<bool> went_through = false;
  std::thread thread([&] {
    job::creation::await();
    went_through = true;
  });
  while (!went_through && !a_thread_sleeps_in_futex()) std::this_thread::yield();
  const bool waited = !went_through;
  job::creation::release();
  thread.join();
  return waited;
}

TEST(Creation, AChildWithThisMemoryDoesNotWait) {
  in_process(false, [] { return child_goes_on(0); });
}

TEST(Creation, AChildOfProcessOneThatIsProcessOneDoesNotWait) {
  in_process(true, [] { return getpid() == 1 && child_goes_on(0) && child_goes_on(CLONE_NEWPID); });
}

TEST(Creation, AThreadOfProcessOneWaits) { in_process(true, thread_waits); }

}  // namespace
}  // namespace ckpt
