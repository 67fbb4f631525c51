// What is not protected is found, and the fast way of asking the kernel finds the same as the slow one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>

#include "base/machine/kernel_caps.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/memory/page_scan.h"

namespace ckpt {
namespace {

constexpr uint64_t kTable = 2 << 20;
constexpr int kGuardInstall = 102, kGuardRemove = 103;  // MADV_GUARD_INSTALL and _REMOVE, Linux 6.13

bool is_in_huge_page(Addr a) {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  for (bool here = false; std::getline(file, line);) {
    unsigned long start, end;
    if (sscanf(line.c_str(), "%lx-%lx", &start, &end) == 2) here = start <= a.value && a.value < end;
    if (here && line.starts_with("AnonHugePages:")) return line.find(" 0 kB") == line.npos;
  }
  return false;
}

class PageProtectionTest : public testing::Test {
 protected:
  static constexpr uint64_t kTables = 4;

  void SetUp() override {
    UserfaultfdProbe probe;
    fault_fd.reset(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, &probe));
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | kUffdFeatureWpUnpopulated;
    if (!fault_fd.valid() || ioctl(fault_fd.get(), UFFDIO_API, &api) != 0)
      GTEST_SKIP() << "no userfaultfd that protects holes";
    ASSERT_TRUE(arena.reserve(64 << 20));
    ASSERT_TRUE(scan.open(arena).ok());
    ArenaVector<AddrRange> none(arena);
    if (!scan.scan_protected({Addr::of(this).page_down(), Addr::of(this).page_down() + kPageSize}, none).ok())
      GTEST_SKIP() << "no PAGEMAP_SCAN";
    mapped = static_cast<char*>(
        mmap(nullptr, (kTables + 1) * kTable, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    all.start = Addr{(Addr::of(mapped).value + kTable - 1) & ~(kTable - 1)};
    all.end = all.start + kTables * kTable;
    map_anew(all);
  }
  void TearDown() override {
    if (mapped != nullptr) munmap(mapped, (kTables + 1) * kTable);
  }

  void map_anew(AddrRange r, bool registered = true) {
    ASSERT_EQ(
        mmap(r.start.as(), r.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
        r.start.as());
    madvise(r.start.as(), r.size(), MADV_NOHUGEPAGE);
    if (!registered) return;
    uffdio_register reg{};
    reg.range = {r.start.value, r.size()};
    reg.mode = UFFDIO_REGISTER_MODE_WP;
    ASSERT_EQ(ioctl(fault_fd.get(), UFFDIO_REGISTER, &reg), 0);
  }
  // What is registered of it.
  void protect(AddrRange r, bool on) {
    for (Addr a = r.start; a < r.end; a = a + kPageSize) {
      uffdio_writeprotect wp{};
      wp.range = {a.value, kPageSize};
      wp.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
      ASSERT_TRUE(ioctl(fault_fd.get(), UFFDIO_WRITEPROTECT, &wp) == 0 || errno == ENOENT);
    }
  }
  // Not where it is protected: nobody would serve the fault.
  void write(AddrRange r) {
    madvise(r.start.as(), r.size(), kGuardRemove);
    protect(r, false);
    for (Addr a = r.start; a < r.end; a = a + kPageSize) *a.as<volatile char>() = 1;
  }

  std::vector<AddrRange> unprotected(AddrRange r, bool announced) {
    ArenaVector<AddrRange> runs(arena);
    EXPECT_TRUE(scan.scan_unprotected(r, announced, runs).ok());
    return {runs.begin(), runs.end()};
  }
  void require_same(AddrRange r) {
    const auto slowly = unprotected(r, false);
    ASSERT_EQ(unprotected(r, true), slowly);
    const long all_but_guards = is_protected(scan.descriptor(), r);
    ASSERT_GE(all_but_guards, slowly.empty());
    ASSERT_EQ(is_protected_if_mapped(scan.descriptor(), r), all_but_guards);
  }

  ScopedFd fault_fd, memory{open("/proc/self/mem", O_RDONLY | O_CLOEXEC)};
  Arena arena;
  PageScan scan;
  char* mapped = nullptr;
  AddrRange all{};
};

TEST_F(PageProtectionTest, WhatWasLostIsFound) {
  if (!missing_are_written(scan.descriptor())) GTEST_SKIP() << "this kernel has no fast way";
  protect(all, true);
  require_same(all);
  EXPECT_TRUE(unprotected(all, true).empty());
  const AddrRange page{all.start + kTable + 5 * kPageSize, all.start + kTable + 6 * kPageSize};
  protect(page, false);
  require_same(all);
  EXPECT_EQ(unprotected(all, true), std::vector{page});
  protect(page, true);
  // A page table is gone.
  const AddrRange block{all.start + kTable, all.start + 2 * kTable};
  for (bool registered : {true, false}) {
    map_anew(block, registered);
    require_same(all);
    EXPECT_EQ(unprotected(all, true), std::vector{block});
    write(page);
    require_same(all);
    EXPECT_EQ(unprotected(all, true), std::vector{block});
  }
}

TEST_F(PageProtectionTest, TheFirstThatIsProtected) {
  AddrRange found{};
  EXPECT_EQ(first_protected(scan.descriptor(), all, &found), 0);  // neither pages nor page tables
  write(all);
  EXPECT_EQ(first_protected(scan.descriptor(), all, &found), 0);
  const AddrRange pages{all.start + 700 * kPageSize, all.start + 703 * kPageSize};
  protect(pages, true);
  ASSERT_EQ(first_protected(scan.descriptor(), all, &found), 1);
  EXPECT_EQ(found, pages);
  ASSERT_EQ(first_protected(scan.descriptor(), {pages.start + kPageSize, all.end}, &found), 1);
  EXPECT_EQ(found, (AddrRange{pages.start + kPageSize, pages.end}));
  EXPECT_EQ(first_protected(scan.descriptor(), {pages.end, all.end}, &found), 0);
  // A mark in place of a page.
  protect(pages, false);
  const AddrRange hole{all.start + 9 * kPageSize, all.start + 10 * kPageSize};
  ASSERT_EQ(madvise(hole.start.as(), hole.size(), MADV_DONTNEED), 0);
  protect(hole, true);
  ASSERT_EQ(first_protected(scan.descriptor(), all, &found), 1);
  EXPECT_EQ(found, hole);
}

TEST_F(PageProtectionTest, GuardsAreNotLost) {
  protect(all, true);
  const AddrRange guards{all.start + 700 * kPageSize, all.start + 703 * kPageSize};
  if (madvise(guards.start.as(), guards.size(), kGuardInstall) != 0) GTEST_SKIP() << "no MADV_GUARD_INSTALL";
  if (is_protected(scan.descriptor(), {guards.start, guards.end}) == 0)
    GTEST_SKIP() << "a kernel that does not tell guards";
  require_same(all);
  EXPECT_EQ(is_protected_if_mapped(scan.descriptor(), all), 1);
  // One page beside them.
  protect({guards.end, guards.end + kPageSize}, false);
  require_same(all);
  EXPECT_EQ(is_protected_if_mapped(scan.descriptor(), all), 0);
}

TEST_F(PageProtectionTest, FastAndSlowFindTheSame) {
  std::mt19937 random(7);
  auto any = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
  for (int i = 0; i < 2000; ++i) {
    if (any(40) == 0) protect(all, true);
    const uint64_t bytes = kPageSize * (any(3) == 0 ? 1 + any(700) : 1 + any(4));
    const Addr start = all.start + any((all.size() - bytes) / kPageSize) * kPageSize;
    const AddrRange some{start, start + bytes};
    const Addr table = all.start + any(kTables) * kTable;
    switch (any(11)) {
      case 0:
        protect(some, true);
        break;
      case 1:
        protect(some, false);
        break;
      case 2:
        write(some);
        break;
      case 3:
        madvise(some.start.as(), some.size(), MADV_DONTNEED);
        break;
      case 4:
        map_anew({table, table + kTable});
        break;
      case 5:
        map_anew(some);
        break;
      case 6:
        map_anew({table, table + kTable}, false);
        break;
      case 7:
        map_anew(some, false);
        break;
      case 8:
        madvise(some.start.as(), some.size(), kGuardInstall);
        break;
      case 9:
        madvise(table.as(), kTable, MADV_DONTNEED);
        break;
      default: {
        char byte;
        [[maybe_unused]] const ssize_t read =
            pread(memory.get(), &byte, 1, static_cast<off_t>(some.start.value));  // a guard fails
      }
    }
    SCOPED_TRACE(i);
    require_same(all);
    require_same(some);
    if (HasFatalFailure()) return;
  }
}

TEST_F(PageProtectionTest, HugePagesToo) {
  const AddrRange huge{all.start, all.start + kTable};
  madvise(huge.start.as(), kTable, MADV_HUGEPAGE);
  *huge.start.as<volatile char>() = 1;
  if (!is_in_huge_page(huge.start)) GTEST_SKIP() << "no huge page";
  require_same(all);
  auto protect_at_once = [&](bool on) {
    uffdio_writeprotect wp{};
    wp.range = {huge.start.value, huge.size()};
    wp.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
    ASSERT_EQ(ioctl(fault_fd.get(), UFFDIO_WRITEPROTECT, &wp), 0);
  };
  protect({huge.end, all.end}, true);
  protect_at_once(true);
  require_same(all);
  EXPECT_TRUE(unprotected(all, true).empty());
  protect_at_once(false);
  require_same(all);
  EXPECT_EQ(unprotected(all, true), std::vector{huge});
}

}  // namespace
}  // namespace ckpt
