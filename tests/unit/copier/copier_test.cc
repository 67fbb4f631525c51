// Threads that write at full speed, threads that give memory back, the sequential copier, the fault
// handler and the writer, on a model of memory: every page is in the image once, as it was at the stop.
#include <optional>
#include <random>

#include "copier/engines/dma_copy_engine.h"
#include "tests/unit/copier/copier_rig.h"

namespace ckpt {
namespace {

using test::fill_simple;
using test::kPerSegment;
using test::Rig;

TEST(Copier, CopiesInTurnWhatNobodyTouches) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
  EXPECT_EQ(rig.copier.counters().sequential, 4u);
  for (size_t i = 0; i < 64; ++i) EXPECT_FALSE(rig.memory.is_protected(i));
}

TEST(Copier, NeighboursAreReadByOneCall) {
  for (bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    Rig rig(208, 32);
    for (size_t i = 0; i < 208; ++i) rig.memory.set(i, i + 1);
    rig.memory.together_fails = fails;
    rig.copier.set_together(4 * kPerSegment * kPageSize);
    rig.region(0, 112);
    rig.present(0, 66);   // five segments, of the last one two pages
    rig.present(96, 16);  // the next of the table
    rig.region(112, 32);
    rig.present(112, 5);  // two runs
    rig.present(119, 8);
    rig.present(128, 16);
    rig.region(144, 64, false);
    rig.present(144, 48);
    rig.go();
    EXPECT_TRUE(rig.copier.run());
    // Pieces: of four segments, of four of two regions, of three that only the kernel may read.
    EXPECT_EQ(rig.memory.together, (std::vector<size_t>{4, 5, 3}));
    rig.expect_pages_of_the_stop();
  }
}

TEST(Copier, SmallRegionsThatAdjoinShareABuffer) {
  Rig rig(kPerSegment * 8, 8);
  for (size_t i = 0; i < rig.memory.size(); ++i) rig.memory.set(i, i + 1);
  // Four in each segment, in some with a hole.
  for (size_t i = 0; i < rig.memory.size(); i += 4) {
    const size_t pages = i % 32 == 20 ? 3 : 4;
    rig.region(i, pages);
    rig.present(i, pages);
  }
  rig.go();
  EXPECT_TRUE(rig.copier.run());
  rig.expect_pages_of_the_stop();
}

TEST(Copier, NothingIsClaimedWhileItWaitsForABuffer) {
  Rig rig(kPerSegment * 8, 8);  // copies in order may have six
  rig.copier.set_together(4 * kPerSegment * kPageSize);
  for (size_t i = 0; i < rig.memory.size(); ++i) rig.memory.set(i, i + 1);
  rig.region(0, rig.memory.size());
  rig.present(0, rig.memory.size());
  uint32_t taken[3];
  ASSERT_EQ(rig.pool.try_acquire_some(CopyKind::kSequential, taken), 3u);
  rig.go();
  std::thread copying([&] { EXPECT_TRUE(rig.copier.run()); });
  // Three are free: the writer takes two at a time, so the copier waits more than once.
  EXPECT_TRUE(rig.memory.write(rig.memory.size() - 1, 77));
  for (uint32_t buffer : taken) rig.pool.release(buffer);
  copying.join();
  rig.expect_image_of_the_stop();
}

TEST(Copier, AWriteIsAForcedCopyOfItsSegmentFirst) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  ASSERT_TRUE(rig.memory.write(20, 999));
  rig.table.await_copied({1});
  EXPECT_TRUE(rig.memory.is_protected(15));
  EXPECT_FALSE(rig.memory.is_protected(16)) << "the whole segment is writable";
  ASSERT_TRUE(rig.memory.write(31, 999));
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
  EXPECT_EQ(rig.copier.counters().sequential, 3u);
  EXPECT_EQ(rig.copier.counters().forced, 1u);
  EXPECT_EQ(rig.copier.counters().faults, 1u) << "the second write found its segment writable";
}

// The copier follows a fault, whichever thread handles it.
TEST(Copier, WhatLiesBehindAForcedCopyIsNextInOrderFollow) {
  for (const bool in_thread : {false, true}) {
    Rig rig(64, 16);
    fill_simple(rig);
    rig.copier.set_order(Order::kFollow);
    rig.go();
    std::vector<Addr> read;
    if (in_thread) {
      EXPECT_TRUE(rig.copier.make_writable(rig.memory.pages(33, 1)));
      EXPECT_FALSE(rig.memory.is_protected(33));
    } else {
      ASSERT_TRUE(rig.memory.write(33, 999));
      rig.memory.stop_serving();  // the fault has been served to its end
    }
    rig.memory.after_read = [&](Addr a) { read.push_back(a); };
    EXPECT_TRUE(rig.copier.run());
    rig.expect_image_of_the_stop();
    EXPECT_EQ(read, (std::vector{rig.memory.page(48), rig.memory.page(0), rig.memory.page(16)})) << in_thread;
    EXPECT_EQ(rig.copier.counters().forced, 1u);
  }
}

TEST(Copier, MemoryIsCopiedBeforeItIsGivenBack) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  rig.copier.before_release(rig.memory.pages(15, 2));  // two segments
  rig.memory.give_back(15, 2);
  EXPECT_EQ(rig.copier.counters().released, 2u);
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
}

// The thread that gives memory back finds another one in the middle of copying it.
TEST(Copier, MemoryIsNotGivenBackWhileAnotherCopiesIt) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  std::atomic<bool> asks{false}, copied{false}, too_early{false};
  std::thread giver;
  rig.memory.after_read = [&](Addr a) {
    if (a != rig.memory.page(32)) return;
    giver = std::thread([&] {
      asks = true;
      rig.copier.before_release(rig.memory.pages(33, 2));
      if (!copied) too_early = true;
      rig.memory.give_back(33, 2);
    });
    while (!asks) std::this_thread::yield();
    // Time for it to return if it does not wait.
    for (int i = 0; i < 200; ++i) std::this_thread::yield();
  };
  rig.memory.before_unprotect = [&](AddrRange r) {
    if (r.contains(rig.memory.page(32))) copied = true;
  };
  EXPECT_TRUE(rig.copier.run());
  giver.join();
  EXPECT_FALSE(too_early.load());
  rig.expect_image_of_the_stop();
}

TEST(Copier, AWriteOutsideTheTableUnprotectsThePageAlone) {
  Rig rig(64, 16);
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 32);
  rig.present(0, 32);
  rig.go();
  ASSERT_TRUE(rig.memory.write(40, 7));
  EXPECT_TRUE(rig.memory.is_protected(41));
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
  EXPECT_EQ(rig.copier.counters().forced, 0u);
}

// The page is not in the image, the others of its segment are: they are copied, it is not.
TEST(Copier, AWriteToAPageThatIsNewSinceTheStop) {
  Rig rig(64, 16);
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 64);
  rig.present(0, 8);
  rig.present(9, 7);
  ASSERT_TRUE(rig.table.add_window(rig.memory.pages(16, 16)));  // none of its pages exists
  rig.present(32, 32);
  rig.go();
  ASSERT_TRUE(rig.memory.write(8, 7));
  ASSERT_TRUE(rig.memory.write(20, 7));
  rig.table.await_copied({1});
  EXPECT_EQ(rig.table.state({1}), SegmentState::kCopied);
  EXPECT_FALSE(rig.memory.is_protected(16));
  EXPECT_TRUE(rig.copier.run());
  rig.expect_pages_of_the_stop();
  EXPECT_EQ(rig.copier.counters().forced, 1u) << "the segment without pages has nothing to copy";
}

TEST(Copier, WhatIsBesideTheImageMayBeGone) {
  Rig rig(64, 16);
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 64);
  rig.present(0, 3);
  rig.present(5, 59);
  rig.memory.give_back(3, 2);
  rig.table[{0}].open = true;  // not all of it is protected: as the stop has found
  rig.go();
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
}

TEST(Copier, AWriteToWhatIsSavedDoesNotWaitForTheOthers) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  bool written = false;
  rig.memory.after_read = [&](Addr a) {
    if (a != rig.memory.page(48)) return;
    EXPECT_EQ(rig.table.state({1}), SegmentState::kSaved);
    written = rig.memory.write(20, 999);  // on this thread: the copier waits for it
    EXPECT_EQ(rig.table.state({0}), SegmentState::kSaved);
    EXPECT_TRUE(rig.memory.is_protected(0));
  };
  EXPECT_TRUE(rig.copier.run());
  EXPECT_TRUE(written);
  rig.expect_image_of_the_stop();
  EXPECT_EQ(rig.copier.counters().sequential, 4u);
}

// A buffer for each segment but those of the batch itself: who waits for a buffer has nothing left to
// unprotect.
TEST(Copier, NothingStaysSavedWhileItWaitsForABuffer) {
  Rig rig(64, 4);  // three for copies in order
  fill_simple(rig);
  rig.go();
  std::vector<size_t> ends;
  rig.memory.before_unprotect = [&](AddrRange r) { ends.push_back((r.end - rig.memory.base()) / kPageSize); };
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
  ASSERT_FALSE(ends.empty());
  EXPECT_EQ(ends.front(), 48u);
}

TEST(Copier, WhatIsKeptStaysProtectedUntilItIsWritten) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  EXPECT_TRUE(rig.copier.run(true));
  EXPECT_EQ(rig.expect_kept_to_be_untouched(), 64u);
  ASSERT_TRUE(rig.memory.write(20, 999));
  EXPECT_EQ(rig.table.state({1}), SegmentState::kCopied);
  EXPECT_EQ(rig.expect_kept_to_be_untouched(), 48u);
  rig.expect_pages_of_the_stop();
  EXPECT_EQ(rig.copier.counters().forced, 0u);
}

// One thread is about to make its copy writable; another, which waits for it, does so first, goes on and
// unmaps it.
TEST(Copier, WhatAnotherHasLetGoMayBeUnmapped) {
  for (bool in_order : {false, true}) {
    Rig rig(64, 16);
    fill_simple(rig);
    rig.go();
    const size_t first = in_order ? 0 : 32;
    const AddrRange all = rig.memory.pages(first, 16);
    int calls = 0;
    rig.memory.before_unprotect = [&](AddrRange r) {
      if (r != all || ++calls != 1) return;
      EXPECT_EQ(rig.table.state({static_cast<uint32_t>(first / 16)}), SegmentState::kSaved);
      EXPECT_TRUE(rig.copier.make_writable(rig.memory.pages(first, 1)));
      rig.memory.give_back(first, 16);
    };
    bool once = true;
    rig.memory.after_read = [&](Addr a) {
      if (a != rig.memory.page(0) || !std::exchange(once, false)) return;
      // A batch of one: what comes next is another's.
      if (in_order)
        EXPECT_TRUE(rig.copier.make_writable(rig.memory.pages(16, 1)));
      else
        EXPECT_TRUE(rig.copier.make_writable(rig.memory.pages(first, 1)));
    };
    EXPECT_TRUE(rig.copier.run()) << in_order;
    EXPECT_GE(calls, 2);
    rig.expect_image_of_the_stop();
  }
}

TEST(Copier, WhatTheParentHasIsNotCopied) {
  Rig rig(64, 16);
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 64);
  rig.present(0, 16);
  ASSERT_TRUE(rig.table.add_run(rig.memory.pages(16, 16)));
  rig.table[{1}].in_parent = true;
  rig.present(32, 32);
  rig.go();
  ASSERT_TRUE(rig.memory.write(20, 999)) << "nobody copies it first";
  EXPECT_FALSE(rig.copier.holds(rig.memory.pages(16, 16)));
  EXPECT_TRUE(rig.copier.run(true));
  rig.table.await_copied({1});
  EXPECT_EQ(rig.table.state({1}), SegmentState::kCopied);
  rig.expect_pages_of_the_stop();
}

TEST(Copier, WhatIsNotProtectedInFullIsNotKept) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.table[{2}].open = true;
  rig.go();
  EXPECT_TRUE(rig.copier.run(true));
  EXPECT_EQ(rig.table.state({2}), SegmentState::kCopied);
  EXPECT_FALSE(rig.memory.is_protected(32));
  EXPECT_EQ(rig.expect_kept_to_be_untouched(), 48u);
}

// A thread writes, or the kernel tells that memory goes, at each moment of a copy that would be kept.
TEST(Copier, WhatIsWantedInTheMiddleOfItsCopyIsNotKept) {
  for (bool write : {true, false}) {
    for (std::string when : {"reading", "settling", "asking", "kept"}) {
      Rig rig(64, 16);
      fill_simple(rig);
      rig.go();
      std::thread writer;
      bool once = true;
      auto disturb = [&](bool here) {
        if (!here || !std::exchange(once, false)) return;
        if (!write) return rig.copier.removed(rig.memory.pages(33, 2));
        writer = std::thread([&] { EXPECT_TRUE(rig.memory.write(33, 999)); });
        while (rig.copier.counters().faults == 0) std::this_thread::yield();
        // Served, or about to be: it is the segment's state that it looks at.
        for (int i = 0; i < 200; ++i) std::this_thread::yield();
      };
      if (when == "reading") rig.memory.after_read = [&](Addr a) { disturb(a == rig.memory.page(32)); };
      if (when == "settling") {
        rig.memory.in_settle = [&] { disturb(rig.table.state({2}) == SegmentState::kCopying); };
      }
      if (when == "asking") {
        rig.memory.after_still_protected = [&](AddrRange r) { disturb(r.start == rig.memory.page(32)); };
      }
      const bool complete = rig.copier.run(true);
      if (when == "kept") disturb(true);
      if (writer.joinable()) writer.join();
      if (!write && when != "kept") {
        EXPECT_TRUE(rig.copier.lost()) << when;
        rig.finish();
        continue;
      }
      EXPECT_TRUE(complete) << when;
      EXPECT_EQ(rig.table.state({2}), SegmentState::kCopied) << when << (write ? ", write" : ", removed");
      EXPECT_EQ(rig.expect_kept_to_be_untouched(), 48u) << when;
      rig.expect_pages_of_the_stop();
    }
  }
}

// All at once, many times, from different memories. `buffers`: small pools make everyone wait.
// The order of copying is another for each seed.
// threshold: of an emulated device that makes the copies in order; none: they are made by the copier.
void race(unsigned seed, size_t buffers, bool leave_protected = false,
          std::optional<uint32_t> threshold = {}) {
  constexpr size_t kPages = 512, kUntouched = kPerSegment;  // those behind the others nobody writes to
  std::mt19937 random(seed);
  Rig rig(kPages + kUntouched, buffers);
  for (size_t i = 0; i < kPages + kUntouched; ++i) rig.memory.set(i, random() % 8 == 0 ? 0 : i + 1'000'000);
  for (size_t at = random() % 5; at + 40 < kPages;) {
    size_t size = 20 + random() % 150;
    if (at + size > kPages) size = kPages - at;
    rig.region(at, size);
    for (size_t p = at; p < at + size;) {
      size_t run = std::min<size_t>(1 + random() % 30, at + size - p);
      if (random() % 4 != 0) rig.present(p, run);
      p += run;
    }
    at += size + random() % 9;
  }
  rig.region(kPages, kUntouched);
  rig.present(kPages, kUntouched);
  for (SegmentId id{0}; id.value < rig.table.size(); ++id.value)
    rig.table[id].heat = static_cast<uint8_t>(random() % 3);
  rig.copier.set_order(static_cast<Order>(seed % 4));
  rig.copier.set_together((seed % 3 == 0 ? 1 : 4) * kPerSegment * kPageSize);
  rig.go();
  std::atomic<bool> over{false};
  std::atomic<int> started{0};
  std::vector<std::thread> program;
  for (unsigned t = 0; t < 3; ++t) {
    program.emplace_back([&, t] {
      std::mt19937 mine(seed * 10 + t);
      for (uint64_t n = 0; !over || n < 200; ++n) {
        rig.memory.write(mine() % kPages, (uint64_t{t} << 32) + n + 5'000'000);
        if (n == 0) ++started;
      }
    });
  }
  program.emplace_back([&] {
    std::mt19937 mine(seed * 10 + 9);
    for (int n = 0; n < 12; ++n) {
      size_t count = 1 + mine() % 24, first = mine() % (kPages - count);
      rig.copier.before_release(rig.memory.pages(first, count));
      rig.copier.removed(rig.memory.pages(first, count));
      rig.memory.give_back(first, count);
      if (n == 0) ++started;
      std::this_thread::yield();
    }
  });
  // The threads of the program are in it when copying in turn begins.
  while (started < 4) std::this_thread::yield();
  std::optional<DmaCopyEngine> engine;
  std::thread device;
  if (threshold) {
    DmaSettings settings;
    settings.most_bytes = kPerSegment * kPageSize;
    settings.slots = 8;
    engine.emplace(rig.memory, rig.copier.listener(), settings);
    ASSERT_TRUE(engine->reserve(rig.arena()));
    device = std::thread([&] { engine->run(); });
    rig.copier.use(*engine, *threshold);
  }
  EXPECT_TRUE(rig.copier.run(leave_protected));
  if (threshold) {
    engine->stop();
    device.join();
    EXPECT_GT(engine->counters().accepted, 0u);
  }
  over = true;
  for (auto& t : program) t.join();
  if (!leave_protected) return rig.expect_image_of_the_stop();
  rig.expect_pages_of_the_stop();
  rig.expect_kept_to_be_untouched();
}

TEST(Copier, AllAtOnce) {
  for (unsigned seed = 1; seed <= 25 && !HasFailure(); ++seed) race(seed, 32);
}

TEST(Copier, AllAtOnceThroughASmallPool) {
  for (unsigned seed = 101; seed <= 125 && !HasFailure(); ++seed) race(seed, 4);
}

TEST(Copier, AllAtOnceAndKept) {
  for (unsigned seed = 201; seed <= 240 && !HasFailure(); ++seed) race(seed, seed % 2 == 0 ? 32 : 4, true);
}

TEST(Copier, AllAtOnceThroughADevice) {
  for (unsigned seed = 301; seed <= 340 && !HasFailure(); ++seed) {
    race(seed, seed % 2 == 0 ? 32 : 4, seed % 3 == 0, seed % 4 == 0 ? 0 : seed % 4 == 1 ? 101 : 50);
  }
}

// Memory that is gone when the device comes to it: nobody waits for ever.
TEST(Copier, ADeviceThatCannotReadLosesTheCheckpoint) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.memory.give_back(37, 1);
  rig.go();
  DmaCopyEngine engine(rig.memory, rig.copier.listener(), {});
  ASSERT_TRUE(engine.reserve(rig.arena()));
  std::thread device([&] { engine.run(); });
  rig.copier.use(engine, 50);
  EXPECT_FALSE(rig.copier.run());
  rig.copier.before_release(rig.memory.pages(32, 16));
  engine.stop();
  device.join();
  EXPECT_EQ(rig.table.state({2}), SegmentState::kLost);
  rig.finish();
  EXPECT_TRUE(rig.pool.all_free());
}

TEST(Copier, KnowsAPageOfZeros) {
  alignas(8) std::byte page[kPageSize] = {};
  EXPECT_TRUE(page_is_zero(page));
  for (size_t at : {size_t{0}, size_t{7}, size_t{8}, size_t{63}, size_t{64}, size_t{2048}, kPageSize - 1}) {
    page[at] = std::byte{1};
    EXPECT_FALSE(page_is_zero(page)) << at;
    page[at] = std::byte{0};
  }
}

}  // namespace
}  // namespace ckpt
