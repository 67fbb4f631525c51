// Which of the two calls is made, that either will do, and that memory that is not there is an answer and no
// signal.
#include "libckpt_rt/core/kernel/kernel_copy.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace ckpt {
namespace {

class KernelCopyTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 16 * kPageSize;

  static std::byte* map() {
    void* p = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(p, MAP_FAILED);
    return static_cast<std::byte*>(p);
  }
  void SetUp() override {
    program = map();
    buffer = map();
    other = map();
    for (size_t i = 0; i < kBytes; ++i) program[i] = static_cast<std::byte>(i * 7 + i / 251);
    copy.use_for({Addr::of(buffer), Addr::of(buffer) + kBytes});
  }
  void TearDown() override {
    for (std::byte* p : {program, buffer, other}) munmap(p, kBytes);
  }
  bool copies(std::byte* to) {
    memset(to, 0, kBytes);
    return copy.copy(to, Addr::of(program), kBytes) && memcmp(to, program, kBytes) == 0;
  }

  // In a child that may not make the call.
  template <typename Test>
  bool holds_without(uint32_t call, Test test) {
    const pid_t child = fork();
    if (child == 0) {
      sock_filter steps[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      };
      sock_fprog filter{4, steps};
      if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
          prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        _exit(2);
      _exit(test() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 2) << status;
    return status == 0;
  }

  KernelCopy copy;
  std::byte *program = nullptr, *buffer = nullptr, *other = nullptr;
};

TEST_F(KernelCopyTest, EachCallForItsBuffers) {
  EXPECT_TRUE(copies(buffer));
  EXPECT_TRUE(copies(other));
  EXPECT_TRUE(holds_without(__NR_process_vm_readv, [&] { return copies(buffer) && !copies(other); }));
  // Ends beyond them.
  EXPECT_TRUE(holds_without(__NR_process_vm_readv, [&] {
    copy.use_for({Addr::of(buffer), Addr::of(buffer + kBytes - 1)});
    return !copies(buffer);
  }));
}

TEST_F(KernelCopyTest, TheOtherCallWhereOneIsRefused) {
  EXPECT_TRUE(holds_without(__NR_process_vm_writev, [&] { return copies(buffer) && copies(other); }));
}

TEST_F(KernelCopyTest, NoneForThreadsOfTheProgram) {
  EXPECT_TRUE(holds_without(__NR_process_vm_readv,
                            [&] { return !KernelCopy::read(buffer, Addr::of(program), kBytes); }));
}

TEST_F(KernelCopyTest, WhatIsNotThereOrNotReadable) {
  const Addr from = Addr::of(program);
  for (std::byte* to : {buffer, other}) {
    for (size_t page : {0, 1, 15}) {
      SCOPED_TRACE(page);
      std::byte* const at = program + page * kPageSize;
      ASSERT_EQ(mprotect(at, kPageSize, PROT_NONE), 0);
      EXPECT_FALSE(copy.copy(to, from, kBytes));
      ASSERT_EQ(mprotect(at, kPageSize, PROT_READ | PROT_WRITE), 0);
      EXPECT_TRUE(copy.copy(to, from, kBytes));
    }
    ASSERT_EQ(munmap(program + 15 * kPageSize, kPageSize), 0);
    EXPECT_FALSE(copy.copy(to, from, kBytes));
    EXPECT_TRUE(copy.copy(to, from, kBytes - kPageSize));
    ASSERT_NE(mmap(program + 15 * kPageSize, kPageSize, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              MAP_FAILED);
  }
}

TEST_F(KernelCopyTest, SeveralPiecesByOneCall) {
  // Neighbours in the program and not in the buffers, the reverse, and both.
  const CopyPiece pieces[] = {{buffer + 4 * kPageSize, Addr::of(program), kPageSize},
                              {buffer, Addr::of(program + kPageSize), 2 * kPageSize},
                              {buffer + 2 * kPageSize, Addr::of(program + 7 * kPageSize), 2 * kPageSize},
                              {buffer + 8 * kPageSize, Addr::of(program + 9 * kPageSize), 3 * kPageSize},
                              {buffer + 11 * kPageSize, Addr::of(program + 12 * kPageSize), kPageSize}};
  auto copied = [&](const CopyPiece& p) { return memcmp(p.to, p.from.as(), p.bytes) == 0; };
  memset(buffer, 0, kBytes);
  EXPECT_TRUE(copy.copy(pieces));
  for (const CopyPiece& p : pieces) EXPECT_TRUE(copied(p)) << p.from.value;
  for (size_t page : {5, 6, 7, 12}) EXPECT_EQ(buffer[page * kPageSize], std::byte{0}) << page;
  EXPECT_TRUE(holds_without(__NR_process_vm_readv, [&] { return copy.copy(pieces); }));
  EXPECT_TRUE(holds_without(__NR_process_vm_writev, [&] { return !copy.copy(pieces); }));
  ASSERT_EQ(mprotect(program + 11 * kPageSize, kPageSize, PROT_NONE), 0);
  EXPECT_FALSE(copy.copy(pieces));
  ASSERT_EQ(mprotect(program + 11 * kPageSize, kPageSize, PROT_READ), 0);
  EXPECT_TRUE(copy.copy(pieces));
  const CopyPiece elsewhere[] = {pieces[0], {other, Addr::of(program), kPageSize}};
  EXPECT_FALSE(copy.copy(elsewhere));
  EXPECT_FALSE(copy.copy({pieces, 0}));
}

}  // namespace
}  // namespace ckpt
