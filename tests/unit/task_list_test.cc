// The kernel's list of threads leaves some out while others exit; who takes it for complete must not.
#include "libckpt_rt/core/kernel/task_list.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/files/task_text.h"
#include "libckpt_rt/core/kernel/proc_text.h"

namespace ckpt {
namespace {

bool contains(const ArenaVector<int>& tids, int tid) {
  return std::find(tids.begin(), tids.end(), tid) != tids.end();
}

// Threads that exit lie before one that stays.
class Crowd {
 public:
  Crowd() {
    for (int i = 0; i < 2; ++i) {
      leaving_.emplace_back([this] {
        ready_.fetch_add(1);
        while (!go_.load()) {
        }
      });
    }
    staying_ = std::thread([this] {
      stays_ = gettid();
      ready_.fetch_add(1);
      end_.wait(false);
    });
    while (ready_.load() != 3) std::this_thread::yield();
  }
  ~Crowd() {
    end_ = true;
    end_.notify_one();
    go_ = true;
    staying_.join();
    for (std::thread& t : leaving_) t.join();
  }
  void go() { go_ = true; }
  int stays() const { return stays_.load(); }

 private:
  std::vector<std::thread> leaving_;
  std::thread staying_;
  std::atomic<int> ready_{0}, stays_{0};
  std::atomic<bool> go_{false}, end_{false};
};

// A thread that exits while the kernel lists it ends the list: the thread that exits is in the list, and the
// one that stays is not.
TEST(TaskList, AListThatThreadsWereLeftOutOfIsNotTakenForComplete) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own, which comes with the first one";
#endif
  Arena arena;
  ASSERT_TRUE(arena.reserve(1 << 20));
  ArenaVector<int> tids(arena);
  Crowd crowd;
  do {
    ASSERT_TRUE(list_tasks(tids));
  } while (!are_all_tasks(getpid(), tids.span()));
  std::vector<int> left_out, leaving;
  for (const int tid : tids.span()) {
    if (tid == crowd.stays()) continue;
    left_out.push_back(tid);
    if (tid != gettid()) leaving.push_back(tid);
  }
  ASSERT_EQ(leaving.size(), 2u);
  crowd.go();
  for (const int tid : leaving)
    while (is_task(tid)) std::this_thread::yield();
  // As many as there are.
  std::erase(left_out, leaving.front());
  ASSERT_EQ(count_tasks(), static_cast<long>(left_out.size()));
  EXPECT_TRUE(is_task(crowd.stays()));
  EXPECT_FALSE(are_all_tasks(getpid(), left_out));
}

TEST(TaskList, WhatIsListedWhileNobodyComesOrGoesIsComplete) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(1 << 20));
  ArenaVector<int> tids(arena);
  Crowd crowd;
  // A thread that another test has joined may still be on its way out.
  do {
    ASSERT_TRUE(list_tasks(tids));
  } while (!are_all_tasks(getpid(), tids.span()));
  EXPECT_TRUE(contains(tids, crowd.stays()) && contains(tids, gettid()));
  EXPECT_EQ(count_tasks(), static_cast<long>(tids.size()));
  EXPECT_FALSE(are_all_tasks(getpid(), tids.span().first(tids.size() - 1)));
  tids.back() = 1;  // no thread of ours
  EXPECT_FALSE(are_all_tasks(getpid(), tids.span()));
  EXPECT_FALSE(is_task(1));
  crowd.go();
}

// A user of a directory service may be in hundreds of groups. The lines that count then lie behind the first
// 4 KiB of the status file. The thread's name is its first line.
TEST(TaskList, MasksAreReadBehindManyGroupsAndNotFromTheName) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to set groups";
  std::thread([] {
    std::vector<gid_t> groups;
    for (gid_t g = 0; g < 500; ++g) groups.push_back(4'000'000'000u + g);
    ASSERT_EQ(syscall(SYS_setgroups, groups.size(), groups.data()), 0);  // of this thread alone
    ASSERT_EQ(prctl(PR_SET_NAME, "SigBlk:0f0f"), 0);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &blocked, nullptr), 0);
    ASSERT_EQ(pthread_kill(pthread_self(), SIGUSR1), 0);
    SignalMasks masks;
    ASSERT_TRUE(read_signal_masks(gettid(), masks));
    EXPECT_EQ(masks.blocked, 1ull << (SIGUSR1 - 1) | 1ull << (SIGUSR2 - 1));
    EXPECT_EQ(masks.thread, 1ull << (SIGUSR1 - 1));
    // As a tracer sees it.
    const ProcText status(getpid(), gettid(), "/status");
    EXPECT_EQ(status.state(), 'R');
    EXPECT_EQ(status.number("\nSigBlk:\t", 16), masks.blocked);
    EXPECT_EQ(status.number("\nSigPnd:\t", 16), masks.thread);
    siginfo_t taken;
    EXPECT_EQ(sigwaitinfo(&blocked, &taken), SIGUSR1);
  }).join();
}

// "0 725" was 725: a process whose flags are 0 was taken for one that is about to end.
TEST(TaskList, ANumberEndsWhereItsDigitsDo) {
  EXPECT_EQ(to_number(" 0 725 0", 10), 0u);
  EXPECT_EQ(to_number("\t 4194304 2528", 10), 4194304u);
  EXPECT_EQ(to_number("00000000000a1000\n", 16), 0xa1000u);
  EXPECT_EQ(to_number("0\t1000\t", 10), 0u);
  EXPECT_EQ(to_number("  ", 10), 0u);
  EXPECT_EQ(to_number("", 10), 0u);
}

TEST(TaskList, DigestsTellGroupsApartToTheLast) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to set groups";
  std::thread([] {
    constexpr std::string_view kKeys[] = {"Uid:", "Groups:", "CapEff:"};
    auto digest_with = [&](gid_t last) {
      std::vector<gid_t> groups(500, 4'000'000'000u);
      groups.push_back(last);
      EXPECT_EQ(syscall(SYS_setgroups, groups.size(), groups.data()), 0);
      return digest_status("/proc/thread-self/status", kKeys);
    };
    const uint64_t one = digest_with(4'000'000'001u);
    EXPECT_NE(one, digest_with(4'000'000'002u));
    EXPECT_EQ(one, digest_with(4'000'000'001u));
    EXPECT_EQ(digest_status("/proc/thread-self/no such file", kKeys), 0u);
  }).join();
}

}  // namespace
}  // namespace ckpt
