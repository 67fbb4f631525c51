// Several reads at once: what is there arrives where it belongs, and what is not is told.
#include "restart/feed/direct_reads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace ckpt {
namespace {

constexpr size_t kBlock = 4096, kBlocks = 100;

class DirectReadsOfAFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "direct_reads.XXXXXX";  // in the build directory: what /tmp is may know no O_DIRECT
    const int fd = mkstemp(name);
    ASSERT_GE(fd, 0);
    for (size_t i = 0; i < kBlocks; ++i) {
      const std::vector<char> block(kBlock, static_cast<char>('!' + i % 90));
      ASSERT_EQ(write(fd, block.data(), kBlock), static_cast<ssize_t>(kBlock));
    }
    fsync(fd);
    close(fd);
    fd_ = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
    unlink(name);
    if (fd_ < 0) GTEST_SKIP() << "no O_DIRECT here";
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory_, MAP_FAILED);
  }
  void TearDown() override {
    if (fd_ >= 0) close(fd_);
    if (memory_ != nullptr) munmap(memory_, kBytes);
  }
  // All blocks, backwards, each into a place of its own.
  std::vector<StoredRead> all_blocks() {
    std::vector<StoredRead> reads;
    for (size_t i = kBlocks; i-- > 0;) reads.push_back({i * kBlock, {memory_ + i * kBlock, kBlock}});
    return reads;
  }
  static std::vector<StoredRead*> list_of(std::vector<StoredRead>& reads) {
    std::vector<StoredRead*> list;
    for (StoredRead& r : reads) list.push_back(&r);
    return list;
  }
  void expect_all_there() {
    for (size_t i = 0; i < kBytes; ++i)
      ASSERT_EQ(static_cast<char>(memory_[i]), static_cast<char>('!' + i / kBlock % 90)) << i;
  }

  static constexpr size_t kBytes = kBlocks * kBlock;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
};

TEST_F(DirectReadsOfAFile, MoreThanAtOnceInAnyOrder) {
  static_assert(kBlocks > DirectReads::kMost);
  std::vector<StoredRead> reads = all_blocks();
  DirectReads direct;
  direct.read(fd_, list_of(reads));
  for (const StoredRead& r : reads) EXPECT_TRUE(r.done) << r.offset;
  expect_all_there();
}

TEST_F(DirectReadsOfAFile, WhatIsShorterIsNotDone) {
  std::vector<StoredRead> reads = all_blocks();
  reads[0] = {(kBlocks - 1) * kBlock, {memory_, 2 * kBlock}};  // half of it is behind the end
  reads[1] = {kBlocks * kBlock, {memory_ + 2 * kBlock, kBlock}};
  DirectReads direct;
  std::vector<StoredRead*> list = list_of(reads);
  direct.read(fd_, std::span(list).first(3));
  EXPECT_FALSE(reads[0].done);
  EXPECT_FALSE(reads[1].done);
  EXPECT_TRUE(reads[2].done);
}

TEST_F(DirectReadsOfAFile, WhatIsRefusedIsNotDone) {
  std::vector<StoredRead> reads = all_blocks();
  reads[5].out = {memory_ + 100, kBlock};  // not as O_DIRECT wants it
  DirectReads direct;
  direct.read(fd_, list_of(reads));
  EXPECT_FALSE(reads[5].done);
  direct.read(-1, list_of(reads));
  EXPECT_FALSE(reads[5].done);
}

}  // namespace
}  // namespace ckpt
