// Pages that exist are listed once each, in order, however many runs they make.
#include "libckpt_rt/capture/memory/page_scan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace ckpt {
namespace {

class PageScanTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(arena.reserve(64 << 20));
    ASSERT_TRUE(scan.open(arena).ok());
  }
  void TearDown() override { munmap(memory, bytes); }

  // `pages`, of which every `step`-th is written to.
  Mapping map(size_t pages, size_t step) {
    bytes = pages * kPageSize;
    memory =
        static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i += step) memory[i * kPageSize] = 1;
    Mapping m;
    m.range = {Addr::of(memory), Addr::of(memory) + bytes};
    m.whole = true;
    return m;
  }

  Arena arena;
  PageScan scan;
  char* memory = nullptr;
  size_t bytes = 0;
};

// 511 to 513: what the kernel collects at a time; 2731: more than it gives to one call.
TEST_F(PageScanTest, ListsEachRunOnce) {
  for (size_t runs : {1, 2, 511, 512, 513, 1024, 1025, 2048, 2730, 2731, 2732, 5460, 5461, 8192, 20'000}) {
    SCOPED_TRACE(runs);
    const Mapping m = map(runs * 2, 2);
    ArenaVector<AddrRange> found(arena);
    ASSERT_TRUE(scan.scan(m, found).ok());
    ASSERT_EQ(found.size(), runs);
    for (size_t i = 0; i < runs; ++i) {
      ASSERT_EQ(found[i].start, m.range.start + i * 2 * kPageSize);
      ASSERT_EQ(found[i].size(), kPageSize);
    }
    munmap(memory, bytes);
  }
}

TEST_F(PageScanTest, RunsAreAsLongAsTheyAre) {
  const Mapping m = map(3000, 3);
  for (size_t i = 0; i < 3000; i += 6) memory[(i + 1) * kPageSize] = 1;
  ArenaVector<AddrRange> found(arena);
  ASSERT_TRUE(scan.scan(m, found).ok());
  ASSERT_EQ(found.size(), 1000u);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].size(), (i % 2 == 0 ? 2 : 1) * kPageSize);
}

// Of what begins with huge pages those, of what begins with others nothing.
// Three mappings of a file side by side, as those of a library: a run of pages that goes on in the next one
// is cut.
TEST_F(PageScanTest, NeighboursAreListedTogetherAndCut) {
  constexpr size_t kPages = 30, kEach = 10;
  bytes = kPages * kPageSize;
  const int file = memfd_create("library", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
  memory = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  close(file);
  const std::set<size_t> written = {0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 25, 29};
  for (size_t i : written) memory[i * kPageSize] = 1;
  // A page that is only read is the file's.
  for (size_t i = 0; i < kPages; ++i)
    EXPECT_EQ(static_cast<volatile char*>(memory)[i * kPageSize], written.count(i));
  std::vector<Mapping> map(3);
  for (size_t i = 0; i < 3; ++i) {
    const Addr start = Addr::of(memory) + i * kEach * kPageSize;
    map[i].range = {start, start + kEach * kPageSize};
    map[i].handling = Handling::kEager;
    map[i].inode = 1;
  }
  ArenaVector<AddrRange> together(arena), one_by_one(arena);
  ASSERT_TRUE(scan.scan_eager(map, together).ok());
  for (const Mapping& m : map) ASSERT_TRUE(scan.scan(m, one_by_one).ok());
  ASSERT_EQ(together.size(), 6u);
  ASSERT_EQ(together.size(), one_by_one.size());
  for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i], one_by_one[i]) << i;
  // A mapping that is not copied in the stop parts the runs.
  map[1].handling = Handling::kSkip;
  together.clear();
  ASSERT_TRUE(scan.scan_eager(map, together).ok());
  EXPECT_EQ(together.size(), 5u);
}

// The kernel moves pages together (compaction) while they are listed: of a page on its way the table has
// neither the old place nor the new one.
TEST_F(PageScanTest, ListsPagesThatAreBeingMoved) {
  if (std::getenv("CKPT_LONG") == nullptr) GTEST_SKIP() << "takes half a minute: CKPT_LONG=1";
  const int compact = open("/proc/sys/vm/compact_memory", O_WRONLY | O_CLOEXEC);
  if (compact < 0) GTEST_SKIP() << "needs root and compaction";
  constexpr size_t kPages = 1 << 18;
  const Mapping m = map(kPages, 1);
  // Every eighth page of it is free at any time, so that there is something to move.
  auto* others =
      static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  madvise(others, bytes, MADV_NOHUGEPAGE);
  std::memset(others, 1, bytes);
  std::atomic<bool> end{false};
  std::thread mover([&] {
    while (!end.load()) EXPECT_EQ(pwrite(compact, "1", 1, 0), 1);
  });
  size_t missing = 0;
  for (size_t round = 0; round < 40; ++round) {
    for (size_t i = round % 8; i < kPages; i += 8) madvise(others + i * kPageSize, kPageSize, MADV_DONTNEED);
    for (int times = 0; times < 5; ++times) {
      arena.reset();
      ASSERT_TRUE(scan.open(arena).ok());
      ArenaVector<AddrRange> found(arena);
      ASSERT_TRUE(scan.scan(m, found).ok());
      size_t pages = 0;
      for (const AddrRange& run : found) pages += run.size() / kPageSize;
      missing += kPages - pages;
    }
    for (size_t i = round % 8; i < kPages; i += 8) others[i * kPageSize] = 1;
  }
  end = true;
  mover.join();
  close(compact);
  munmap(others, bytes);
  EXPECT_EQ(missing, 0u);
}

}  // namespace
}  // namespace ckpt
