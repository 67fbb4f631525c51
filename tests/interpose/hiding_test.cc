// The checkpoint signal is not there for the program: it cannot be blocked, caught, ignored, waited for
// or read, and what the program reads back is what it would see without us.
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#include <string>
#include <vector>

#include "base/protocol/control_protocol.h"
#include "tests/interpose/blocked_thread.h"

// sighold, sigset and the BSD calls are deprecated, and still called.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace ckpt::test {
namespace {

constexpr int kOurs = kDefaultCheckpointSignal;

sigset_t only(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}
sigset_t all() {
  sigset_t set;
  sigfillset(&set);
  return set;
}

// As the kernel has it.
uint64_t kernel_mask() {
  char path[64], line[256];
  snprintf(path, sizeof(path), "/proc/self/task/%d/status", this_thread());
  FILE* f = fopen(path, "r");
  unsigned long long mask = ~0ull;
  while (fgets(line, sizeof(line), f) != nullptr) sscanf(line, "SigBlk: %llx", &mask);
  fclose(f);
  return mask;
}
bool ours_is_blocked() { return (kernel_mask() >> (kOurs - 1) & 1) != 0; }

bool stop_reaches_this_thread() {
  uint64_t before = stops();
  send_stop(this_thread());
  return stops() == before + 1;
}

class Hiding : public ::testing::Test {
 protected:
  void SetUp() override {
    install_stop_handler(0);
    sigset_t none;
    sigemptyset(&none);
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &none, nullptr), 0);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(Hiding, CannotBeBlocked) {
  sigset_t set = all(), back;
  for (int how : {SIG_BLOCK, SIG_SETMASK}) {
    SetUp();
    ASSERT_EQ(sigprocmask(how, &set, nullptr), 0);
    EXPECT_FALSE(ours_is_blocked());
    EXPECT_TRUE(stop_reaches_this_thread());
    // Reads back as set, with what libc keeps for itself taken out.
    ASSERT_EQ(sigprocmask(SIG_BLOCK, nullptr, &back), 0);
    for (int s = 1; s <= 64; ++s) {
      if (s != SIGKILL && s != SIGSTOP) {
        EXPECT_EQ(sigismember(&back, s), sigismember(&set, s)) << s;
      }
    }
  }
  SetUp();
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  EXPECT_TRUE(stop_reaches_this_thread());
  SetUp();
  uint64_t raw = ~uint64_t{0}, raw_back = 0;
  ASSERT_EQ(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &raw, &raw_back, 8), 0);
  EXPECT_TRUE(stop_reaches_this_thread());
  ASSERT_EQ(syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &raw_back, 8), 0);
  EXPECT_NE(raw_back >> (kOurs - 1) & 1, 0u);
  SetUp();
  ASSERT_EQ(sighold(kOurs), 0);
  EXPECT_TRUE(stop_reaches_this_thread());
  EXPECT_EQ(sigset(kOurs, SIG_HOLD), SIG_DFL);
  EXPECT_TRUE(stop_reaches_this_thread());
  // A mask with some signals does not grow ours.
  set = only(SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &set, &back), 0);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &back), 0);
  EXPECT_EQ(sigismember(&back, kOurs), 0);
  EXPECT_EQ(sigismember(&back, SIGUSR1), 1);
}

// The kernel takes an action without SA_RESTORER, which programs past libc leave out where no handler is
// installed.
TEST_F(Hiding, CannotBeResetPastLibc) {
  struct {
    uint64_t handler, flags, restorer, mask;
  } action{}, back{1, 1, 1, 1};
  for (uint64_t handler : {uint64_t{1} /* SIG_IGN */, uint64_t{0} /* SIG_DFL */}) {
    action.handler = handler;
    ASSERT_EQ(syscall(SYS_rt_sigaction, kOurs, &action, nullptr, 8), 0);
    EXPECT_TRUE(stop_reaches_this_thread());
    ASSERT_EQ(syscall(SYS_rt_sigaction, kOurs, nullptr, &back, 8), 0);
    EXPECT_EQ(back.handler, handler);
    ASSERT_EQ(syscall(SYS_rt_sigaction, SIGUSR1, &action, nullptr, 8), 0);
    ASSERT_EQ(syscall(SYS_rt_sigaction, SIGUSR1, nullptr, &back, 8), 0);
    EXPECT_EQ(back.handler, handler);
  }
}

TEST_F(Hiding, ErrorsAreThoseOfLibc) {
  sigset_t set = all();
  errno = 0;
  EXPECT_EQ(sigprocmask(77, &set, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(pthread_sigmask(77, &set, nullptr), EINVAL);
  struct sigaction a {};
  EXPECT_EQ(sigaction(0, &a, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(sigaction(65, &a, nullptr), -1);
  EXPECT_EQ(sigaction(SIGKILL, &a, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(sigaction(32, &a, nullptr), -1);
  EXPECT_EQ(signal(SIGKILL, SIG_IGN), SIG_ERR);
  EXPECT_EQ(signal(100, SIG_IGN), SIG_ERR);
  EXPECT_EQ(sighold(100), -1);
  EXPECT_EQ(sigset(100, SIG_IGN), SIG_ERR);
}

TEST_F(Hiding, CannotBeCaughtOrIgnored) {
  struct sigaction a {
  }, old{};
  a.sa_handler = SIG_IGN;
  ASSERT_EQ(sigaction(kOurs, &a, &old), 0);
  EXPECT_EQ(old.sa_handler, SIG_DFL);
  EXPECT_TRUE(stop_reaches_this_thread());
  ASSERT_EQ(sigaction(kOurs, nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, SIG_IGN);
  auto handler = [](int) { abort(); };
  EXPECT_EQ(signal(kOurs, handler), SIG_IGN);
  EXPECT_TRUE(stop_reaches_this_thread());
  EXPECT_EQ(signal(kOurs, SIG_DFL), static_cast<sighandler_t>(handler));
  EXPECT_TRUE(stop_reaches_this_thread());
  EXPECT_EQ(sigignore(kOurs), 0);
  EXPECT_TRUE(stop_reaches_this_thread());
  EXPECT_EQ(siginterrupt(kOurs, 1), 0);
  EXPECT_TRUE(stop_reaches_this_thread());
  EXPECT_EQ(signal(kOurs, SIG_DFL), SIG_IGN);
}

// A handler with a full sa_mask can be stopped.
// A handler for one delivery leaves its flags and mask to the default action that follows.
TEST_F(Hiding, DefaultActionsKeepTheirFlags) {
  struct sigaction a {
  }, old{};
  a.sa_handler = [](int) {};
  a.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  a.sa_mask = only(SIGUSR2);
  ASSERT_EQ(sigaction(SIGUSR1, &a, nullptr), 0);
  raise(SIGUSR1);
  ASSERT_EQ(sigaction(SIGUSR1, nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, SIG_DFL);
  EXPECT_EQ(old.sa_flags & a.sa_flags, a.sa_flags);
  EXPECT_EQ(sigismember(&old.sa_mask, SIGUSR2), 1);
  a.sa_handler = SIG_DFL;
  a.sa_flags = SA_NOCLDSTOP;
  ASSERT_EQ(sigaction(SIGUSR1, &a, nullptr), 0);
  ASSERT_EQ(sigaction(SIGUSR1, nullptr, &old), 0);
  EXPECT_EQ(old.sa_flags & SA_NOCLDSTOP, SA_NOCLDSTOP);
}

TEST_F(Hiding, IsNotBlockedInHandlers) {
  static bool reached = false;
  struct sigaction a {};
  a.sa_handler = [](int) { reached = stop_reaches_this_thread(); };
  sigfillset(&a.sa_mask);
  ASSERT_EQ(sigaction(SIGUSR1, &a, nullptr), 0);
  raise(SIGUSR1);
  EXPECT_TRUE(reached);
  signal(SIGUSR1, SIG_DFL);
}

TEST_F(Hiding, IsNotWaitedFor) {
  sigset_t set = all();
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  std::atomic<pid_t> tid{0};
  std::atomic<long> got{-1};
  for (int kind = 0; kind < 4; ++kind) {
    tid = 0;
    std::thread waiter([&] {
      int s = 0;
      siginfo_t info;
      int fd = signalfd(-1, &set, SFD_CLOEXEC);
      signalfd_siginfo read_info{};
      tid = this_thread();
      if (kind == 0) got = sigwait(&set, &s) == 0 ? s : -1;
      if (kind == 1) got = sigwaitinfo(&set, &info);
      if (kind == 2) got = sigtimedwait(&set, &info, nullptr);
      if (kind == 3) got = read(fd, &read_info, sizeof(read_info)) > 0 ? read_info.ssi_signo : -1;
      close(fd);
    });
    while (tid == 0) sched_yield();
    wait_until_sleeping_in(tid, kind == 3 ? SYS_read : SYS_rt_sigtimedwait);
    for (int i = 0; i < 20; ++i) {
      uint64_t before = stops();
      send_stop(tid);
      while (stops() == before) sched_yield();
    }
    pthread_kill(waiter.native_handle(), SIGUSR2);
    waiter.join();
    EXPECT_EQ(got.load(), SIGUSR2) << kind;
  }
}

TEST_F(Hiding, IsNotBlockedByAWaitsMask) {
  sigset_t set = all();
  sigdelset(&set, SIGUSR1);
  signal(SIGUSR1, [](int) {});
  for (int kind = 0; kind < 3; ++kind) {
    std::atomic<pid_t> tid{0};
    std::thread waiter([&] {
      tid = this_thread();
      if (kind == 0) sigsuspend(&set);
      if (kind == 1) ppoll(nullptr, 0, nullptr, &set);
      if (kind == 2) pselect(0, nullptr, nullptr, nullptr, nullptr, &set);
    });
    while (tid == 0) sched_yield();
    wait_until_sleeping_in(tid, kind == 0 ? SYS_rt_sigsuspend : kind == 1 ? SYS_ppoll : SYS_pselect6);
    uint64_t before = stops();
    send_stop(tid);
    int64_t until = now() + 60'000'000'000;  // the thread may have no processor for a while
    while (stops() == before && now() < until) sched_yield();
    EXPECT_EQ(stops(), before + 1) << kind;
    pthread_kill(waiter.native_handle(), SIGUSR1);
    waiter.join();
  }
  signal(SIGUSR1, SIG_DFL);
}

TEST_F(Hiding, ThreadsDoNotBeginWithItBlocked) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  sigset_t set = all();
  ASSERT_EQ(pthread_attr_setsigmask_np(&attributes, &set), 0);
  pthread_t thread;
  void* blocked = nullptr;
  ASSERT_EQ(pthread_create(
                &thread, &attributes,
                [](void*) -> void* { return reinterpret_cast<void*>(ours_is_blocked() ? 1L : 0L); }, nullptr),
            0);
  pthread_join(thread, &blocked);
  EXPECT_EQ(blocked, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_F(Hiding, ProgramsDoNotBeginWithItBlockedOrIgnored) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t set = all();
  posix_spawnattr_setsigmask(&attributes, &set);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  signal(kOurs, SIG_IGN);
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, p[1], 1);
  const char* argv[] = {"grep", "-E", "SigBlk|SigIgn", "/proc/self/status", nullptr};
  pid_t child;
  ASSERT_EQ(posix_spawnp(&child, "grep", &actions, &attributes, const_cast<char**>(argv), environ), 0);
  close(p[1]);
  std::string text;
  char some[500];
  for (ssize_t n; (n = read(p[0], some, sizeof(some))) > 0;) text.append(some, static_cast<size_t>(n));
  waitpid(child, nullptr, 0);
  unsigned long long blocked = 0, ignored = ~0ull;
  ASSERT_EQ(sscanf(text.c_str(), "SigBlk: %llx SigIgn: %llx", &blocked, &ignored), 2) << text;
  EXPECT_EQ(blocked >> (kOurs - 1) & 1, 0u);
  EXPECT_EQ(ignored >> (kOurs - 1) & 1, 0u);
  EXPECT_NE(blocked >> (SIGUSR1 - 1) & 1, 0u);
  close(p[0]);
  signal(kOurs, SIG_DFL);
}

TEST_F(Hiding, IsNotPending) {
  sigset_t set = all(), pending;
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  raise(SIGUSR1);
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGUSR1), 1);
  EXPECT_EQ(sigismember(&pending, kOurs), 0);
  int s;
  set = only(SIGUSR1);
  sigwait(&set, &s);
}

// Masks that libc saved came from the kernel; those that a program wrote into a context did not.
TEST_F(Hiding, JumpsAndContextsDoNotBlockIt) {
  sigset_t set = all();
  sigjmp_buf jump;
  pthread_sigmask(SIG_SETMASK, &set, nullptr);
  if (sigsetjmp(jump, 1) == 0) {
    SetUp();
    siglongjmp(jump, 1);
  }
  EXPECT_FALSE(ours_is_blocked());
  EXPECT_NE(kernel_mask() >> (SIGUSR1 - 1) & 1, 0u);
  static ucontext_t here, there;
  static char stack[65536];
  static bool blocked = true;
  ASSERT_EQ(getcontext(&there), 0);
  there.uc_stack.ss_sp = stack;
  there.uc_stack.ss_size = sizeof(stack);
  there.uc_link = &here;
  there.uc_sigmask = set;
  makecontext(
      &there, [] { blocked = ours_is_blocked(); }, 0);
  ASSERT_EQ(swapcontext(&here, &there), 0);
  EXPECT_FALSE(blocked);
  static std::atomic<int> times = 0;
  ASSERT_EQ(getcontext(&here), 0);
  if (times++ == 0) {
    here.uc_sigmask = set;
    setcontext(&here);
  }
  EXPECT_EQ(times.load(), 2);
  EXPECT_FALSE(ours_is_blocked());
}

TEST_F(Hiding, BsdCallsKeepTheirMeaning) {
  auto bit = [](int signal) { return 1 << (signal - 1); };
  EXPECT_EQ(sigblock(bit(SIGUSR1)), 0);
  EXPECT_EQ(sigsetmask(bit(SIGUSR2)), bit(SIGUSR1));
  EXPECT_EQ(siggetmask(), bit(SIGUSR2));
  EXPECT_EQ(sigrelse(SIGUSR2), 0);
  EXPECT_EQ(siggetmask(), 0);
  static int count = 0;
  EXPECT_EQ(sysv_signal(SIGUSR1, [](int) { ++count; }), SIG_DFL);
  raise(SIGUSR1);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(signal(SIGUSR1, SIG_DFL), SIG_DFL);
  siginterrupt(SIGUSR1, 1);
  signal(SIGUSR1, [](int) {});
  struct sigaction a;
  sigaction(SIGUSR1, nullptr, &a);
  EXPECT_EQ(a.sa_flags & SA_RESTART, 0);
  siginterrupt(SIGUSR1, 0);
  sigaction(SIGUSR1, nullptr, &a);
  EXPECT_NE(a.sa_flags & SA_RESTART, 0);
  signal(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace ckpt::test
