// What a call gets for a wrong address is the kernel's EFAULT, and a timeout in read-only memory is left
// alone: this library looks at some arguments in the kernel's place, and may not end the program by it.
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/interpose/blocked_thread.h"

namespace ckpt::test {
namespace {

int error_of(long r) { return r == -1 ? errno : 0; }

class Pointers : public ::testing::Test {
 protected:
  void SetUp() override {
    install_stop_handler(0);
    // Two pages, of which the second is not there: what crosses the end is as wrong as what lies behind it.
    page_ = static_cast<char*>(
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(page_, MAP_FAILED);
    ASSERT_EQ(mprotect(page_ + kPage, kPage, PROT_NONE), 0);
    for (auto wrong : {page_ + kPage, page_ + kPage - 8, reinterpret_cast<char*>(~uintptr_t{0} - 7),
                       reinterpret_cast<char*>(uintptr_t{1} << 63)})
      wrong_.push_back(wrong);
  }
  void TearDown() override { munmap(page_, 2 * kPage); }

  template <typename T>
  T* read_only(const T& value) {
    auto* at = reinterpret_cast<T*>(page_);
    EXPECT_EQ(mprotect(page_, kPage, PROT_READ | PROT_WRITE), 0);
    *at = value;
    EXPECT_EQ(mprotect(page_, kPage, PROT_READ), 0);
    return at;
  }

  static constexpr size_t kPage = 4096;
  char* page_ = nullptr;
  std::vector<char*> wrong_;
};

TEST_F(Pointers, ATimeoutInReadOnlyMemoryIsLeftAlone) {
  const timespec* limit = read_only(timespec{0, 1000});
  EXPECT_EQ(syscall(SYS_ppoll, nullptr, 0, limit, nullptr, 0), 0);
  EXPECT_EQ(syscall(SYS_pselect6, 0, nullptr, nullptr, nullptr, limit, nullptr), 0);
  EXPECT_EQ(limit->tv_nsec, 1000);
  const timeval* micro = read_only(timeval{0, 1});
  EXPECT_EQ(syscall(SYS_select, 0, nullptr, nullptr, nullptr, micro), 0);
  EXPECT_EQ(micro->tv_usec, 1);
}

TEST_F(Pointers, WhatRemainsIsWritten) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  pollfd ready{ends[0], POLLIN, 0};
  // Less than there was, by as long as the call took: that may be seconds, where the machine stands still.
  auto is_what_remains = [](int64_t seconds) { return seconds > 900 && seconds < 1000; };
  timespec limit{1000, 0};
  EXPECT_EQ(syscall(SYS_ppoll, &ready, 1, &limit, nullptr, 0), 1);
  EXPECT_TRUE(is_what_remains(limit.tv_sec)) << limit.tv_sec;
  fd_set in;
  FD_ZERO(&in);
  FD_SET(ends[0], &in);
  limit = {1000, 0};
  EXPECT_EQ(syscall(SYS_pselect6, ends[0] + 1, &in, nullptr, nullptr, &limit, nullptr), 1);
  EXPECT_TRUE(is_what_remains(limit.tv_sec)) << limit.tv_sec;
  timeval micro{999, 1'000'000};
  EXPECT_EQ(syscall(SYS_select, ends[0] + 1, &in, nullptr, nullptr, &micro), 1);
  EXPECT_TRUE(is_what_remains(micro.tv_sec)) << micro.tv_sec;
  EXPECT_LT(micro.tv_usec, 1'000'000);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(Pointers, WrongTimeoutsAndMasksAreRefusedByTheKernel) {
  struct {
    const void* mask;
    size_t size;
  } packed{nullptr, 8};
  timespec none{0, 0};
  const int poll = epoll_create1(0);
  epoll_event event;
  for (char* wrong : wrong_) {
    auto* mask = reinterpret_cast<sigset_t*>(wrong);
    SCOPED_TRACE(static_cast<void*>(wrong));
    EXPECT_EQ(error_of(syscall(SYS_ppoll, nullptr, 0, wrong, nullptr, 8)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_pselect6, 0, nullptr, nullptr, nullptr, wrong, nullptr)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_pselect6, 0, nullptr, nullptr, nullptr, &none, wrong)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_select, 0, nullptr, nullptr, nullptr, wrong)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_nanosleep, wrong, nullptr)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, wrong)), EFAULT);
    if (wrong == page_ + kPage - 8) continue;  // a mask has 8 bytes
    packed.mask = wrong;
    EXPECT_EQ(error_of(syscall(SYS_pselect6, 0, nullptr, nullptr, nullptr, &none, &packed)), EFAULT);
    EXPECT_EQ(error_of(ppoll(nullptr, 0, &none, mask)), EFAULT);
    EXPECT_EQ(error_of(pselect(0, nullptr, nullptr, nullptr, &none, mask)), EFAULT);
    EXPECT_EQ(error_of(epoll_pwait(poll, &event, 1, 0, mask)), EFAULT);
    EXPECT_EQ(error_of(sigsuspend(mask)), EFAULT);
    EXPECT_EQ(error_of(sigtimedwait(mask, nullptr, &none)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_rt_sigtimedwait, wrong, nullptr, &none, 8)), EFAULT);
    EXPECT_EQ(error_of(signalfd(-1, mask, 0)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_signalfd4, -1, wrong, 8, 0)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_rt_sigprocmask, SIG_BLOCK, wrong, nullptr, 8)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_rt_sigaction, SIGUSR1, wrong, nullptr, 8)), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_rt_sigaction, SIGUSR1, nullptr, wrong, 8)), EFAULT);
  }
  close(poll);
}

// The change is made, and then there is no telling of what was before.
TEST_F(Pointers, ChangesAreMadeBeforeTheOldIsTold) {
  sigset_t back;
  uint64_t usr1 = uint64_t{1} << (SIGUSR1 - 1);
  const void* old = read_only(uint64_t{5});
  EXPECT_EQ(error_of(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &usr1, old, 8)), EFAULT);
  ASSERT_EQ(sigprocmask(SIG_UNBLOCK, reinterpret_cast<sigset_t*>(&usr1), &back), 0);
  EXPECT_EQ(sigismember(&back, SIGUSR1), 1);
  struct {
    uint64_t handler, flags, restorer, mask;
  } ignored{1, 0, 0, 0};
  EXPECT_EQ(error_of(syscall(SYS_rt_sigaction, SIGUSR1, &ignored, old, 8)), EFAULT);
  EXPECT_EQ(signal(SIGUSR1, SIG_DFL), SIG_IGN);
}

// A descriptor that is none libc refuses itself.
TEST_F(Pointers, WordsOfAProgramAreReadByTheKernel) {
  char word[] = "true";
  char* words[] = {word, nullptr};
  memset(page_, 0xff, kPage);  // no list ends in it
  for (char* wrong : wrong_) {
    auto* list = reinterpret_cast<char**>(wrong);
    EXPECT_EQ(error_of(execve("/bin/true", list, environ)), EFAULT);
    EXPECT_EQ(error_of(execve("/bin/true", words, list)), EFAULT);
    EXPECT_EQ(error_of(execve(wrong, words, environ)), EFAULT);
    EXPECT_EQ(error_of(execvpe("/bin/true", list, environ)), EFAULT);
  }
  EXPECT_EQ(error_of(fexecve(-1, words, environ)), EINVAL);
}

TEST_F(Pointers, SemaphoreOperationsAreReadAsTheKernelReadsThem) {
  const int id = semget(IPC_PRIVATE, 1, 0600);
  ASSERT_GE(id, 0);
  timespec none{0, 0};
  for (char* wrong : wrong_) {
    EXPECT_EQ(error_of(semop(id, reinterpret_cast<sembuf*>(wrong), 2)), EFAULT);
    sembuf up{0, 1, SEM_UNDO};
    EXPECT_EQ(error_of(semtimedop(id, &up, 1, reinterpret_cast<timespec*>(wrong))), EFAULT);
    EXPECT_EQ(error_of(syscall(SYS_semtimedop, id, wrong, 2, &none)), EFAULT);
  }
  EXPECT_EQ(semctl(id, 0, GETVAL), 0);
  semctl(id, 0, IPC_RMID);
}

// A handler ends a sleep that is to tell what remains, to memory that cannot be written.
TEST_F(Pointers, WhatRemainsOfASleepHasNoPlace) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  std::thread waker([self] {
    wait_until_sleeping_in(self, SYS_clock_nanosleep);
    syscall(SYS_tgkill, getpid(), self, SIGALRM);
  });
  const timespec long_time{1000, 0};
  EXPECT_EQ(error_of(nanosleep(&long_time, const_cast<timespec*>(read_only(timespec{})))), EFAULT);
  waker.join();
}

}  // namespace
}  // namespace ckpt::test
