// The ledger of shared memory, by two members in one process: what a member reads is as at the stop, whatever
// others write after they have kept it.
#include "copier/shared/shared_ledger.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace ckpt {
namespace {

constexpr uint64_t kUnit = SharedLedger::kUnit;

class Memory final : public SourceMemory {
 public:
  long read(std::byte* to, Addr from, size_t bytes, bool) override {
    // As the kernel does it, which no race detector sees: others write meanwhile.
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      const uint64_t word = std::atomic_ref(*(from + at).as<uint64_t>()).load(std::memory_order_relaxed);
      std::memcpy(to + at, &word, sizeof(word));
    }
    return 0;
  }
};

struct Member {
  SharedLedger ledger;
  Memory memory;
};

struct Rig {
  static constexpr uint64_t kUnits = 8;
  explicit Rig(uint32_t count) {
    void* p = mmap(nullptr, (kUnits + 1) * kUnit, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    // Begins and ends in the middle of a unit.
    const uint64_t aligned = (reinterpret_cast<uint64_t>(p) + kUnit - 1) & ~(kUnit - 1);
    range = {Addr{aligned + 2 * kPageSize}, Addr{aligned + kUnits * kUnit - kPageSize}};
    object = {1, 2, range.start.value, range.size(), 0, 0};
    const LedgerSize size{SharedLedger::units_of(range), count, 1};
    ScopedFd file = SharedLedger::make(size);
    EXPECT_TRUE(file.valid());
    descriptor = dup(file.get());
    for (Member& m : members) {
      if (count-- == 0) break;
      EXPECT_TRUE(m.ledger.reserve());
      EXPECT_TRUE(m.ledger.join(ScopedFd(dup(file.get())), size, {&object, 1}));
      m.ledger.read_by(m.memory);
    }
  }
  ~Rig() { close(descriptor); }
  uint64_t* word(uint64_t page) { return (range.start + page * kPageSize).as<uint64_t>(); }

  Member members[3];
  AddrRange range;
  LedgerObject object{};
  int descriptor = -1;
  alignas(8) std::byte buffer[256 << 10];
  uint64_t read_word(Member& m, uint64_t page) {
    const Addr at = range.start + page * kPageSize;
    EXPECT_TRUE(m.ledger.read(buffer, {at, at + kPageSize}));
    uint64_t value;
    std::memcpy(&value, buffer, sizeof(value));
    return value;
  }
};

TEST(SharedLedger, WhatIsSavedIsReadWhateverIsWrittenAfterwards) {
  Rig rig(2);
  for (uint64_t page = 0; page < 100; ++page) *rig.word(page) = page + 1;
  const Addr at = rig.range.start + 20 * kPageSize;
  rig.members[0].ledger.save_for_others({at, at + kPageSize});
  for (uint64_t page = 0; page < 40; ++page) *rig.word(page) = 7777;
  // Its whole unit, and no other.
  const uint64_t first = (at.value & ~(kUnit - 1)) - rig.range.start.value;
  for (uint64_t page = 0; page < 40; ++page) {
    const bool saved = page * kPageSize >= first && page * kPageSize < first + kUnit;
    for (Member& m : std::span(rig.members, 2))
      EXPECT_EQ(rig.read_word(m, page), saved ? page + 1 : 7777u) << page;
  }
  EXPECT_EQ(rig.members[0].ledger.units_saved(), 1u);
}

TEST(SharedLedger, TheFirstToSaveWinsAndLaterOnesChangeNothing) {
  Rig rig(2);
  *rig.word(5) = 1;
  rig.members[0].ledger.save_for_others(rig.range);
  *rig.word(5) = 2;
  rig.members[1].ledger.save_for_others(rig.range);
  *rig.word(5) = 3;
  EXPECT_EQ(rig.read_word(rig.members[0], 5), 1u);
  EXPECT_EQ(rig.read_word(rig.members[1], 5), 1u);
  EXPECT_EQ(rig.members[1].ledger.units_saved(), 0u);
}

TEST(SharedLedger, APageMadeSinceIsNotThere) {
  Rig rig(2);
  *rig.word(3) = 1;
  rig.members[0].ledger.save_for_others(rig.range);
  *rig.word(4) = 9;
  EXPECT_EQ(rig.read_word(rig.members[1], 4), 0u);
  // Nor does it come to be by being read.
  unsigned char resident = 1;
  EXPECT_EQ(rig.read_word(rig.members[1], 60), 0u);
  ASSERT_EQ(mincore(rig.word(60), kPageSize, &resident), 0);
  EXPECT_EQ(resident & 1, 0);
}

TEST(SharedLedger, NothingIsSavedWhenAllHaveCopied) {
  Rig rig(2);
  EXPECT_TRUE(rig.members[0].ledger.needed());
  rig.members[0].ledger.copied();
  rig.members[0].ledger.copied();
  EXPECT_TRUE(rig.members[1].ledger.needed());
  rig.members[1].ledger.copied();
  EXPECT_FALSE(rig.members[0].ledger.needed());
  rig.members[0].ledger.save_for_others(rig.range);
  EXPECT_EQ(rig.members[0].ledger.units_saved(), 0u);
}

TEST(SharedLedger, AMadeUpSlotIsNotRead) {
  Rig rig(2);
  *rig.word(0) = 1;
  const uint32_t slot = 0x7fffffff;
  ASSERT_EQ(pwrite(rig.descriptor, &slot, sizeof(slot), 64), static_cast<ssize_t>(sizeof(slot)));
  EXPECT_FALSE(rig.members[1].ledger.read(rig.buffer, {rig.range.start, rig.range.start + kPageSize}));
}

TEST(SharedLedger, AFileThatCouldShrinkOrIsTooSmallIsRefused) {
  Rig rig(1);
  const LedgerSize size{SharedLedger::units_of(rig.range), 1, 1};
  Member other;
  ASSERT_TRUE(other.ledger.reserve());
  EXPECT_FALSE(other.ledger.join(ScopedFd(memfd_create("small", 0)), size, {&rig.object, 1}));
  ScopedFd open(memfd_create("open", MFD_ALLOW_SEALING));
  struct stat st {};
  ASSERT_EQ(fstat(rig.descriptor, &st), 0);
  ASSERT_EQ(ftruncate(open.get(), st.st_size), 0);
  EXPECT_FALSE(other.ledger.join(std::move(open), size, {&rig.object, 1}));
  LedgerObject outside = rig.object;
  outside.first_unit = size.units;
  EXPECT_FALSE(other.ledger.join(ScopedFd(dup(rig.descriptor)), size, {&outside, 1}));
}

TEST(SharedLedger, OutsideOfAllObjectsNothingIsRead) {
  Rig rig(1);
  EXPECT_FALSE(rig.members[0].ledger.read(
      rig.buffer, {Addr{rig.range.end.value - kPageSize}, rig.range.end + kPageSize}));
}

// Two members write, each after it has kept the unit, while a third reads all again and again.
TEST(SharedLedger, AReaderNeverSeesWhatWasWrittenSince) {
  for (int round = 0; round < 50; ++round) {
    Rig rig(3);
    const uint64_t pages = rig.range.size() / kPageSize;
    for (uint64_t page = 0; page < pages; ++page) *rig.word(page) = 1'000 + page;
    std::vector<std::thread> writers;
    for (unsigned w = 0; w < 2; ++w) {
      writers.emplace_back([&, w] {
        for (uint64_t n = 0; n < pages; ++n) {
          const uint64_t page = (n * 13 + w * 50) % pages;
          const Addr at = rig.range.start + page * kPageSize;
          rig.members[w].ledger.save_for_others({at, at + kPageSize});
          std::atomic_ref(*rig.word(page)).store(1, std::memory_order_relaxed);
        }
      });
    }
    for (int again = 0; again < 3; ++again) {
      for (uint64_t page = 0; page < pages; ++page)
        ASSERT_EQ(rig.read_word(rig.members[2], page), 1'000 + page);
    }
    for (std::thread& t : writers) t.join();
  }
}

}  // namespace
}  // namespace ckpt
