// What a thread of ours has taken to go before the program's, it and a child that it forks give back.
#include "libckpt_rt/core/threads/of_ours/urgency.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt {
namespace {

constexpr int kNice = 3;
constexpr uint64_t kSlice = 100'000;  // ns, that of the agent (raw_thread.cc)
constexpr int kPassed = 0, kFailed = 1, kNotAllowed = 2;

SchedAttr attributes() {
  SchedAttr a{};
  syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0);
  return a;
}

bool begin(Urgency& urgency) {
  SchedAttr a{};
  a.size = sizeof(a);
  a.nice = kNice;
  a.runtime = kSlice;
  if (syscall(SYS_sched_setattr, 0, &a, 0) != 0) return false;
  urgency.begin();
  return attributes().nice == -20;
}

// Kernels before 6.12 have no slice of one thread.
bool is_as_before() {
  const SchedAttr a = attributes();
  return a.nice == kNice && (a.runtime == kSlice || a.runtime == 0);
}

int status_of(const std::function<int()>& run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
}

TEST(Urgency, AForkedChildHasNiceAndSliceOfBefore) {
  const int status = status_of([] {
    Urgency urgency;
    if (!begin(urgency)) return kNotAllowed;
    const int of_child = status_of([&] {
      urgency.end();
      return is_as_before() ? kPassed : kFailed;
    });
    urgency.end();
    return is_as_before() ? of_child : kFailed;
  });
  if (status == kNotAllowed) GTEST_SKIP() << "nice -20 is not allowed here";
  EXPECT_EQ(status, kPassed);
}

// As whoever may go first by RLIMIT_NICE: the kernel lets nobody but CAP_SYS_NICE take its flag back.
TEST(Urgency, EndsWithoutTheRightToTakeTheFlagBack) {
  const int status = status_of([] {
    Urgency urgency;
    if (!begin(urgency)) return kNotAllowed;
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    if (syscall(SYS_capget, &header, data) != 0) return kFailed;
    data[CAP_TO_INDEX(CAP_SYS_NICE)].effective &= ~CAP_TO_MASK(CAP_SYS_NICE);
    if (syscall(SYS_capset, &header, data) != 0) return kFailed;
    urgency.end();
    return is_as_before() ? kPassed : kFailed;
  });
  if (status == kNotAllowed) GTEST_SKIP() << "nice -20 is not allowed here";
  EXPECT_EQ(status, kPassed);
}

}  // namespace
}  // namespace ckpt
