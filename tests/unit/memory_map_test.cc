// The list of mappings read ahead and again is the list read afresh, whatever changed in between by system calls of
// any kind.
#include "libckpt_rt/memory_map.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "libckpt_rt/hooks.h"
#include "libckpt_rt/library_range.h"

namespace ckpt {

constinit std::atomic<bool> hooks::has_forked{false};
AddrRange library_data_range() { return {}; }

namespace {

constexpr size_t kMany = 600;  // mappings: their text is longer than what the kernel gives at once

class ReadAgain : public testing::Test {
 protected:
  void SetUp() override {
    hooks::has_forked = false;
    ASSERT_TRUE(arena.reserve(64 << 20));
    // Memory of ours, which is left out of all lists: what they are compared for.
    own.push_back(arena.range());
    base = map(kMany * 2 * kPageSize, PROT_NONE);
    for (size_t i = 0; i < kMany; ++i) protect(i, PROT_READ | PROT_WRITE);
  }
  void TearDown() override { syscall(SYS_munmap, base, kMany * 2 * kPageSize); }

  static char* map(size_t bytes, int prot, int flags = MAP_PRIVATE | MAP_ANONYMOUS) {
    return reinterpret_cast<char*>(syscall(SYS_mmap, 0, bytes, prot, flags, -1, 0));
  }
  char* at(size_t i) { return base + i * 2 * kPageSize; }
  void protect(size_t i, int prot) { ASSERT_EQ(syscall(SYS_mprotect, at(i), kPageSize, prot), 0); }

  // Nothing is allocated by libc between the two, so that they see the same.
  void compare() {
    MemoryMap now(arena);
    ASSERT_TRUE(again.read_again(own).ok());
    ASSERT_TRUE(now.read(own).ok());
    ASSERT_EQ(again.mappings().size(), now.mappings().size());
    for (size_t i = 0; i < now.mappings().size(); ++i) {
      const Mapping &a = again.mappings()[i], &b = now.mappings()[i];
      ASSERT_EQ(a.range.start.value, b.range.start.value) << i;
      ASSERT_EQ(a.range.end.value, b.range.end.value) << i;
      ASSERT_EQ(a.prot, b.prot) << i;
      ASSERT_EQ(a.shared, b.shared) << i;
      ASSERT_EQ(a.file_offset, b.file_offset) << i;
      ASSERT_EQ(a.device, b.device) << i;
      ASSERT_EQ(a.inode, b.inode) << i;
      ASSERT_EQ(a.kind, b.kind) << i;
      ASSERT_EQ(a.handling, b.handling) << i;
      ASSERT_STREQ(a.path, b.path) << i;
    }
    EXPECT_EQ(again.vdso, now.vdso);
    EXPECT_EQ(again.vvar, now.vvar);
  }
  void read_ahead() { ASSERT_TRUE(again.read_ahead(own).ok()); }

  Arena arena;
  std::vector<AddrRange> own;
  MemoryMap again{arena};
  char* base = nullptr;
};

TEST_F(ReadAgain, NothingChanged) {
  read_ahead();
  compare();
}

TEST_F(ReadAgain, Protected) {
  read_ahead();
  protect(kMany / 2, PROT_READ);
  compare();
}

TEST_F(ReadAgain, ChangedAtManyPlaces) {
  read_ahead();
  for (size_t i : {size_t{0}, size_t{7}, kMany / 2, kMany - 1}) protect(i, PROT_READ | PROT_EXEC);
  syscall(SYS_munmap, at(20), kPageSize);
  syscall(SYS_mmap, at(30) + kPageSize, kPageSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  compare();
}

TEST_F(ReadAgain, MappedAndUnmapped) {
  char* gone = map(3 * kPageSize, PROT_READ, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  syscall(SYS_munmap, gone, 3 * kPageSize);
  char* come = map(5 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  compare();
  syscall(SYS_munmap, come, 5 * kPageSize);
}

TEST_F(ReadAgain, ReplacedByItsLike) {
  char* object = map(2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  // Only the inode tells them apart.
  syscall(SYS_mmap, object, 2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  compare();
  syscall(SYS_munmap, object, 2 * kPageSize);
}

TEST_F(ReadAgain, SharedTwice) {
  char* object = map(2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  long second = syscall(SYS_mremap, object, 0, 2 * kPageSize, MREMAP_MAYMOVE);
  ASSERT_NE(second, -1);
  compare();
  syscall(SYS_munmap, object, 2 * kPageSize);
  syscall(SYS_munmap, second, 2 * kPageSize);
}

TEST_F(ReadAgain, SharedWithAChildSince) {
  char* object = map(2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  hooks::has_forked = true;
  compare();
  syscall(SYS_munmap, object, 2 * kPageSize);
}

TEST_F(ReadAgain, ManyMoreThanThereWasRoomFor) {
  read_ahead();
  constexpr size_t kMore = 3000;
  char* more = map(kMore * 2 * kPageSize, PROT_NONE);
  for (size_t i = 0; i < kMore; ++i) {
    ASSERT_EQ(syscall(SYS_mprotect, more + i * 2 * kPageSize, kPageSize, PROT_READ), 0);
  }
  compare();
  syscall(SYS_munmap, more, kMore * 2 * kPageSize);
}

}  // namespace
}  // namespace ckpt
