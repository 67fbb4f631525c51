// Processes and threads made by clone() and by syscall(2): all behave as libc's do, and the library is told
// before those that are processes.
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iterator>

#include "tests/interpose/stop_alone.h"

namespace ckpt::test {
namespace {

alignas(16) char stack[64 << 10];

struct Told {
  int fork = 0, forked = 0, spawn = 0;
  bool operator==(const Told&) const = default;
};

class Clone : public ::testing::Test {
 protected:
  Told told() const {
    return {forks_begun() - before_.fork, forks_made() - before_.forked, spawns() - before_.spawn};
  }
  static int status_of(long pid) {
    int status = -1;
    EXPECT_GT(pid, 0) << errno;
    EXPECT_EQ(waitpid(static_cast<pid_t>(pid), &status, __WALL), static_cast<pid_t>(pid));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  Told before_{forks_begun(), forks_made(), spawns()};
};

const Told kForked{1, 1, 0}, kSpawned{0, 0, 1};

// What the child was told: that it is one, and before its end.
int told_in_child() { return forks_in_child() * 10 + ends_announced(); }

TEST_F(Clone, ForkBySyscall) {
  const int told_before = told_in_child();
  const long pid = syscall(SYS_fork);
  if (pid == 0) _exit(told_in_child() - told_before);
  EXPECT_EQ(status_of(pid), 10);
  EXPECT_EQ(told(), kForked);
}

TEST_F(Clone, CloneBySyscallCopiesTheStack) {
  int mine = 1;
  pid_t in_parent = 0;
  const long pid = syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID, 0L, &in_parent, 0L, 0L);
  if (pid == 0) {
    mine = 2;
    _exit(mine);
  }
  EXPECT_EQ(status_of(pid), 2);
  EXPECT_EQ(in_parent, pid);
  EXPECT_EQ(mine, 1);
  EXPECT_EQ(told(), kForked);
}

TEST_F(Clone, Clone3BySyscall) {
  clone_args args{};
  args.exit_signal = SIGCHLD;
  const long pid = syscall(SYS_clone3, &args, sizeof(args));
  if (pid == 0) _exit(3);
  EXPECT_EQ(status_of(pid), 3);
  EXPECT_EQ(told(), kForked);
}

TEST_F(Clone, WhatTheKernelRefusesItRefuses) {
  errno = 0;
  EXPECT_EQ(syscall(SYS_clone3, nullptr, sizeof(clone_args)), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(syscall(SYS_clone3, 8L, sizeof(clone_args)), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(syscall(SYS_clone3, stack, 8L), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(syscall(SYS_clone, CLONE_THREAD | SIGCHLD, 0L, 0L, 0L, 0L), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(clone(nullptr, std::end(stack), SIGCHLD, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

struct Numbers {
  int given, seen;
};

TEST_F(Clone, ByLibcWithACopyOfMemory) {
  Numbers numbers{4, 0};
  const int told_before = told_in_child();
  pid_t in_parent = 0;
  const int pid = clone(
      [](void* p) {
        auto* n = static_cast<Numbers*>(p);
        n->seen = n->given;
        return n->seen + forks_in_child();
      },
      std::end(stack), SIGCHLD | CLONE_PARENT_SETTID, &numbers, &in_parent);
  EXPECT_EQ(status_of(pid), 4 + told_before / 10 + 1);
  EXPECT_EQ(in_parent, pid);
  EXPECT_EQ(numbers.seen, 0);
  EXPECT_EQ(told(), kForked);
}

// The child's stack is ordinary; the parent's is one that the child has otherwise.
void clone_from_stack(int advice, int flags) {
  constexpr size_t kBytes = 256 << 10;
  void* const stack_of_parent = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
  ASSERT_NE(stack_of_parent, MAP_FAILED);
  ASSERT_TRUE(advice == 0 || madvise(stack_of_parent, kBytes, advice) == 0);
  static ucontext_t back, there;
  static int seen;
  seen = 0;
  getcontext(&there);
  there.uc_stack = {stack_of_parent, 0, kBytes};
  there.uc_link = &back;
  makecontext(
      &there,
      +[] {
        for (int i = 0; i < 20; ++i) {
          const int pid = clone([](void*) { return 9; }, std::end(stack), SIGCHLD, nullptr);
          int status = 0;
          if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 9 << 8) ++seen;
        }
      },
      0);
  swapcontext(&back, &there);
  EXPECT_EQ(seen, 20);
  munmap(stack_of_parent, kBytes);
}

TEST_F(Clone, FromAStackThatTheChildHasOtherwise) {
  clone_from_stack(MADV_DONTFORK, MAP_PRIVATE);
  clone_from_stack(MADV_WIPEONFORK, MAP_PRIVATE);
  clone_from_stack(0, MAP_SHARED);
}

// The parent waits in the kernel: no fork of its is under way that others could wait for.
TEST_F(Clone, AWaitedForCopyIsAnnouncedAlone) {
  const int pid = clone([](void*) { return forks_made(); }, std::end(stack), CLONE_VFORK | SIGCHLD, nullptr);
  EXPECT_EQ(status_of(pid), forks_made());
  EXPECT_EQ(told(), kForked);
  const int ends_before = ends_announced();
  const long other = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0L, 0L, 0L, 0L);
  if (other == 0) _exit(forks_made());
  EXPECT_EQ(status_of(other), forks_made());
  EXPECT_EQ(ends_announced(), ends_before);
  EXPECT_EQ(told(), (Told{2, 2, 0}));
}

TEST_F(Clone, ByLibcInTheSameMemory) {
  Numbers numbers{5, 0};
  const int pid = clone(
      [](void* p) {
        auto* n = static_cast<Numbers*>(p);
        n->seen = n->given;
        return 6;
      },
      std::end(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &numbers);
  EXPECT_EQ(status_of(pid), 6);
  EXPECT_EQ(numbers.seen, 5);
  EXPECT_EQ(told(), kSpawned);
}

// The child has the words that lie on its stack as return address and what follows.
[[noreturn]] void child_on_its_stack() {
  syscall(SYS_exit_group, 7L);
  __builtin_trap();
}

TEST_F(Clone, BySyscallOnAnotherStack) {
  auto** top = reinterpret_cast<void (**)()>(std::end(stack)) - 2;
  *top = child_on_its_stack;
  const long pid = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, top, 0L, 0L, 0L);
  EXPECT_EQ(status_of(pid), 7);
  EXPECT_EQ(told(), kSpawned);
}

TEST_F(Clone, SystemAndPopen) {
  EXPECT_EQ(system("exit 8"), 8 << 8);
  EXPECT_NE(system(nullptr), 0);
  EXPECT_EQ(told(), kSpawned);
  FILE* pipe = popen("echo 9", "r");
  ASSERT_NE(pipe, nullptr);
  int number = 0;
  EXPECT_EQ(fscanf(pipe, "%d", &number), 1);
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(number, 9);
  EXPECT_EQ(told(), (Told{0, 0, 2}));
  errno = 0;
  EXPECT_EQ(popen("true", "x"), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace ckpt::test
