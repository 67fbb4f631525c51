// POSIX timers as /proc/PID/timers lists them, and made again with the numbers that the program knows;
// registrations of membarrier(2). Also by kernels that lack the newer calls, which a filter refuses here.
#include "libckpt_rt/capture/process/process_timers.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "libckpt_rt/capture/process/membarrier.h"

namespace ckpt {
namespace {

// The order of kernels before 6.15.
constexpr char kNewestFirst[] =
    "ID: 7\nsignal: 12/0000000000000abc\nnotify: signal/pid.1\nClockID: 1\n"
    "ID: 5\nsignal: 10/0000000000000000\nnotify: none/pid.1\nClockID: 0\n"
    "ID: 2\nsignal: 34/0000000000000001\nnotify: signal/pid.1\nClockID: 1\n";

TEST(ProcessTimers, AreListedByTheirNumbers) {
  auto timers = std::make_unique<ProcessTimers>();
  ASSERT_TRUE(list_timers(kNewestFirst, *timers).ok());
  ASSERT_EQ(timers->count, 3u);
  const int ids[] = {2, 5, 7}, signals[] = {34, 10, 12};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(timers->list[i].id, ids[i]);
    EXPECT_EQ(timers->list[i].signal, signals[i]);
  }
  EXPECT_EQ(timers->list[1].notify, SIGEV_NONE);
  EXPECT_EQ(timers->list[2].value, 0xabcu);
}

// Refuses a call whose first argument is this one.
bool be_a_kernel_without(uint32_t call, uint32_t argument) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(code) / sizeof(code[0]), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What a child exits with.
template <typename Work>
int in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessTimers, AreMadeAgainByKernelsThatCountTheNumbersUp) {
  auto timers = std::make_unique<ProcessTimers>();
  ASSERT_TRUE(list_timers(kNewestFirst, *timers).ok());
  const int code = in_child([&] {         // its numbers begin with 0
    constexpr uint32_t kRestoreIds = 77;  // PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15
    if (!be_a_kernel_without(__NR_prctl, kRestoreIds)) return 1;
    if (restore_timers(*timers) != 0) return 2;
    for (int id = 0; id < 10; ++id) {
      itimerspec left;
      const bool wanted = id == 2 || id == 5 || id == 7;
      if ((syscall(SYS_timer_gettime, id, &left) == 0) != wanted) return 10 + id;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(ProcessTimers, AreFoundWhereTheKernelDoesNotListThem) {
  const int code = in_child([] {
    if (has_some_timer()) return 1;
    sigevent event{};
    event.sigev_notify = SIGEV_NONE;
    int id = -1;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id) != 0) return 2;
    return has_some_timer() ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
}

// Linux 6.3 tells the registrations.
TEST(Membarrier, RegistrationsAreFoundByKernelsThatDoNotTellThem) {
  constexpr uint32_t kWanted =
      MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
  const int code = in_child([] {
    if (!be_a_kernel_without(__NR_membarrier, 1 << 9 /* MEMBARRIER_CMD_GET_REGISTRATIONS */)) return 1;
    if (membarrier_registrations() != 0) return 2;
    register_for_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    return membarrier_registrations() == kWanted ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace ckpt
