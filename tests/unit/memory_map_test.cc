// The list of mappings read ahead and again is the list read afresh, whatever changed in between by system
// calls of any kind.
#include "libckpt_rt/capture/memory/memory_map.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/locks/futex.h"
#include "base/raii_fd.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/library_range.h"

namespace ckpt {

constinit std::atomic<bool> hooks::has_forked{false};
AddrRange library_data_range() { return {}; }

namespace {

constexpr size_t kMany = 600;  // mappings: their text is longer than what the kernel gives at once

// Whether another thread reads the second half.
class ReadAgain : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    hooks::has_forked = false;
    ASSERT_TRUE(arena.reserve(1 << 30));
    // Memory of ours, which is left out of all lists: what they are compared for.
    own.push_back(arena.range());
    base = map(kMany * 2 * kPageSize, PROT_NONE);
    make_many(0, kMany);
  }
  void TearDown() override { syscall(SYS_munmap, base, kMany * 2 * kPageSize); }

  static char* map(size_t bytes, int prot, int flags = MAP_PRIVATE | MAP_ANONYMOUS) {
    return reinterpret_cast<char*>(syscall(SYS_mmap, 0, bytes, prot, flags, -1, 0));
  }
  void make_many(size_t i, size_t n) {
    syscall(SYS_mmap, at(i), n * 2 * kPageSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t end = i + n; i < end; ++i) protect(i, PROT_READ | PROT_WRITE);
  }
  char* at(size_t i) { return base + i * 2 * kPageSize; }
  void protect(size_t i, int prot) { ASSERT_EQ(syscall(SYS_mprotect, at(i), kPageSize, prot), 0); }

  // Nothing is allocated by libc between the two, so that they see the same.
  void compare() {
    MemoryMap now(arena);
    if (GetParam()) {
      order = kStarts;
      helper = std::thread([this] { help(); });
      // A sanitizer's runtime maps memory for the new thread, from within it.
      while (order == kStarts) futex_wait(order, kStarts);
    }
    ASSERT_TRUE(again.read_again(own, GetParam() ? others() : OtherThreads{}).ok());
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
    if (!GetParam()) return;
    order = kLeave;
    futex_wake(order);
    helper.join();
    order = kNone;
  }

  // A thread that waits for work. It is started and joined outside of what is compared: its stack is a
  // mapping.
  enum : uint32_t { kNone, kStarts, kWork, kDone, kLeave };
  void help() {
    order = kNone;
    futex_wake(order);
    for (uint32_t o; (o = order.load()) != kLeave;) {
      if (o != kWork) {
        futex_wait(order, o);
        continue;
      }
      work(argument);
      ++helped;
      order = kDone;
      futex_wake(order);
    }
  }
  OtherThreads others() {
    return {this,
            [](void* self, void (*what)(void*), void* with) {
              auto& t = *static_cast<ReadAgain*>(self);
              t.work = what;
              t.argument = with;
              t.order = kWork;
              futex_wake(t.order);
            },
            [](void* self) {
              auto& t = *static_cast<ReadAgain*>(self);
              while (t.order == kWork) futex_wait(t.order, kWork);
            }};
  }
  void read_ahead() { ASSERT_TRUE(again.read_ahead(own).ok()); }

  Arena arena;
  std::vector<AddrRange> own;
  MemoryMap again{arena};
  char* base = nullptr;
  std::thread helper;
  FutexWord order{kNone};
  void (*work)(void*) = nullptr;
  void* argument = nullptr;
  unsigned helped = 0;
};

INSTANTIATE_TEST_SUITE_P(, ReadAgain, testing::Bool(),
                         [](const auto& two) { return two.param ? "ByTwo" : "ByOne"; });

TEST_P(ReadAgain, NothingChanged) {
  read_ahead();
  compare();
}

TEST_P(ReadAgain, Protected) {
  read_ahead();
  protect(kMany / 2, PROT_READ);
  compare();
}

TEST_P(ReadAgain, ChangedAtManyPlaces) {
  read_ahead();
  for (size_t i : {size_t{0}, size_t{7}, kMany / 2, kMany - 1}) protect(i, PROT_READ | PROT_EXEC);
  syscall(SYS_munmap, at(20), kPageSize);
  syscall(SYS_mmap, at(30) + kPageSize, kPageSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  compare();
}

TEST_P(ReadAgain, MappedAndUnmapped) {
  char* gone = map(3 * kPageSize, PROT_READ, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  syscall(SYS_munmap, gone, 3 * kPageSize);
  char* come = map(5 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  compare();
  syscall(SYS_munmap, come, 5 * kPageSize);
}

TEST_P(ReadAgain, ReplacedByItsLike) {
  char* object = map(2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  // Only the inode tells them apart.
  syscall(SYS_mmap, object, 2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
          0);
  compare();
  syscall(SYS_munmap, object, 2 * kPageSize);
}

TEST_P(ReadAgain, SharedTwice) {
  char* object = map(2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  long second = syscall(SYS_mremap, object, 0, 2 * kPageSize, MREMAP_MAYMOVE);
  ASSERT_NE(second, -1);
  compare();
  syscall(SYS_munmap, object, 2 * kPageSize);
  syscall(SYS_munmap, second, 2 * kPageSize);
}

TEST_P(ReadAgain, SharedWithAChildSince) {
  char* object = map(2 * kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  read_ahead();
  hooks::has_forked = true;
  compare();
  syscall(SYS_munmap, object, 2 * kPageSize);
}

TEST_P(ReadAgain, ManyMoreThanThereWasRoomFor) {
  read_ahead();
  constexpr size_t kMore = 3000;
  char* more = map(kMore * 2 * kPageSize, PROT_NONE);
  for (size_t i = 0; i < kMore; ++i) {
    ASSERT_EQ(syscall(SYS_mprotect, more + i * 2 * kPageSize, kPageSize, PROT_READ), 0);
  }
  compare();
  syscall(SYS_munmap, more, kMore * 2 * kPageSize);
}

// Wherever the two readers meet: it is somewhere among these mappings.
TEST_P(ReadAgain, AnyChangeAtAnyPlace) {
  std::mt19937 random(1);
  constexpr unsigned kRounds = 200;
  for (unsigned round = 0; round < kRounds; ++round) {
    if (round % 8 == 0) make_many(0, kMany);
    read_ahead();
    for (unsigned changes = random() % 4; changes != 0; --changes) {
      const size_t i = random() % kMany, n = random() % 2 == 0 ? 1 : 1 + random() % (kMany - i);
      const size_t bytes = n * 2 * kPageSize;
      switch (random() % 4) {
        case 0:
          syscall(SYS_munmap, at(i), bytes);
          break;
        case 1:  // joined
          syscall(SYS_mmap, at(i), bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
          break;
        case 2:
          make_many(i, n);
          break;
        default:  // grown into what lies before it
          if (i == 0) break;
          syscall(SYS_mmap, at(i) - kPageSize, 2 * kPageSize, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      }
    }
    compare();
    if (HasFatalFailure()) return;
  }
  if (GetParam()) {
    EXPECT_GT(helped, kRounds / 2);
  }
}

// The kernel's text says the same of different names.
// The kernel makes one mapping of what we map beside memory of the program with the same flags.
TEST(FlagsOfMappings, OfMemoryThatIsOneMappingWithOurs) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(64 << 20));
  auto* both =
      static_cast<char*>(mmap(nullptr, 4 * kPageSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char *ours = both + kPageSize, *program = ours + kPageSize;
  ASSERT_EQ(mmap(ours, 2 * kPageSize, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0),
            ours);
  const AddrRange own[] = {arena.range(), {Addr::of(ours), Addr::of(program)}};
  MemoryMap map(arena);
  ASSERT_TRUE(map.read(own).ok());
  ASSERT_TRUE(map.read_flags().ok());
  const Mapping* found = map.find(Addr::of(program));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->range.start.value, reinterpret_cast<uint64_t>(program));
  EXPECT_NE(found->map_flags & kMapNoReserve, 0u);
  munmap(both, 4 * kPageSize);
}

TEST(NamesOfMappedFiles, AreThoseOfTheFiles) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(64 << 20));
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / ("ckpt names" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  struct Named {
    const char* name;
    bool remove;
    const char* found = name;
    char* at = nullptr;
  } files[] = {{"new\nline and\nanother\n", false},       {"not a new\\012line", false},
               {"a new\nline, and not\\012one\n", false}, {"is there (deleted)", false},
               {"gone", true, "gone (deleted)"},          {"gone\n", true, "gone\n (deleted)"}};
  for (Named& f : files) {
    const std::string path = directory / f.name;
    ScopedFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd.valid()) << path;
    ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
    f.at = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    ASSERT_NE(f.at, MAP_FAILED);
    if (f.remove) unlink(path.c_str());
  }
  MemoryMap map(arena);
  ASSERT_TRUE(map.read({}).ok());
  for (const Named& f : files) {
    const Mapping* m = map.find(Addr::of(f.at));
    ASSERT_NE(m, nullptr);
    EXPECT_EQ(m->kind, MappingKind::kFileShared);
    EXPECT_EQ((m->map_flags & kMapFileDeleted) != 0, f.remove) << f.name;
    EXPECT_EQ(std::string(m->path, m->path_len), (directory / f.found).string());
    munmap(f.at, 4096);
  }
  std::filesystem::remove_all(directory);
}

// As sem_open(3) does it: mapped by a name that is removed at once, when the file has its own.
class LostNames : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(arena.reserve(64 << 20)); }
  void TearDown() override {
    for (const Made& m : all) munmap(m.at, kPageSize);
    for (const Made& m : all) unlink(m.name.c_str());
  }
  struct Made {
    std::string name;
    char* at;
  };
  Made make(const std::string& directory, bool has_name) {
    const std::string first =
        directory + "/ckpt-test." + std::to_string(getpid()) + "." + std::to_string(all.size());
    ScopedFd fd(open(first.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd.valid() && ftruncate(fd.get(), kPageSize) == 0) << first;
    Made made{first + ".own",
              static_cast<char*>(mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0))};
    EXPECT_TRUE(!has_name || link(first.c_str(), made.name.c_str()) == 0);
    unlink(first.c_str());
    all.push_back(made);
    return made;
  }
  void expect_named(const MemoryMap& map, const Made& made, bool named) {
    const Mapping* m = map.find(Addr::of(made.at));
    ASSERT_NE(m, nullptr);
    EXPECT_EQ((m->map_flags & kMapFileDeleted) != 0, !named) << made.name;
    EXPECT_TRUE(!named || std::string(m->path, m->path_len) == made.name) << made.name;
  }
  Arena arena;
  std::vector<Made> all;
};

TEST_F(LostNames, AreLookedForOnceForAllChangesAround) {
  for (const char* directory : {"/dev/shm", "/tmp"}) {
    std::vector<Made> made;
    for (int i = 0; i < 40; ++i) made.push_back(make(directory, i % 3 != 0));
    MemoryMap map(arena);
    ASSERT_TRUE(map.read_ahead({}).ok());
    // Mappings that lie between two changes are looked at again.
    const Made lower = make("/dev/shm", true);
    void* above = mmap(nullptr, kPageSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    ASSERT_TRUE(map.read_again({}).ok());
    map.check_other_names();
    EXPECT_FALSE(map.has_unknown_name());
    for (size_t i = 0; i < made.size(); ++i) expect_named(map, made[i], i % 3 != 0);
    expect_named(map, lower, true);
    munmap(above, kPageSize);
  }
}

TEST_F(LostNames, ThatWereMappedSince) {
  MemoryMap map(arena), later(arena);
  ASSERT_TRUE(map.read_ahead({}).ok());
  ASSERT_TRUE(later.read_ahead({}).ok());
  std::vector<Made> made;
  for (int i = 0; i < 30; ++i) made.push_back(make("/dev/shm", i % 2 != 0));
  ASSERT_TRUE(map.read_again({}).ok());
  EXPECT_FALSE(map.has_unknown_name());
  for (size_t i = 0; i < made.size(); ++i) expect_named(map, made[i], i % 2 != 0);
  // Elsewhere no directory is read in the stop.
  const Made other = make("/tmp", true);
  ASSERT_TRUE(later.read_again({}).ok());
  EXPECT_TRUE(later.has_unknown_name());
  MemoryMap next(arena);
  ASSERT_TRUE(next.read_ahead({}).ok());
  ASSERT_TRUE(next.read_again({}).ok());
  EXPECT_FALSE(next.has_unknown_name());
  expect_named(next, other, true);
}

}  // namespace
}  // namespace ckpt
