// Threads that write at full speed, threads that give memory back, the sequential copier, the fault
// handler and the writer, on a model of memory: every page is in the image once, as it was at the stop.
#include "copier/copier.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <random>

#include "copier/dma_copy_engine.h"

#include "tests/unit/model_memory.h"

namespace ckpt {
namespace {

using test::ModelMemory;
using test::value_of;

constexpr size_t kPerSegment = 16;  // pages

// One checkpoint of a ModelMemory.
class Rig {
 public:
  Rig(size_t pages, size_t buffers) : memory(pages), copier(table, pool, queue, memory), copies_(pages) {
    EXPECT_TRUE(arena_.reserve(4 << 20));
    EXPECT_TRUE(table.reserve(arena_, kPerSegment * kPageSize, pages / kPerSegment + 64, 64));
    EXPECT_TRUE(pool.reserve(buffers * kPerSegment * kPageSize, kPerSegment * kPageSize));
    EXPECT_TRUE(queue.reserve(arena_, static_cast<uint32_t>(buffers) + 1));
  }
  ~Rig() {
    finish();
    pool.release_memory();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void region(size_t first, size_t count) { EXPECT_TRUE(table.add_region({memory.pages(first, count)})); }
  // Pages of the region added last that exist; their values are those of the image.
  void present(size_t first, size_t count) {
    EXPECT_TRUE(table.add_run(memory.pages(first, count)));
    for (size_t i = first; i < first + count; ++i) expected_.push_back(i);
  }
  // The end of the stop.
  void go() {
    for (size_t i : expected_) at_stop_.push_back(*memory.page(i).as<uint64_t>());
    for (size_t i = 0; i < memory.size(); ++i) memory.protect(i);
    memory.serve(copier);
    writer_ = std::thread([this] {
      CopiedSegment batch[8];
      const size_t wanted = std::max<size_t>(1, std::min<size_t>(8, pool.buffers() / 4));
      while (size_t n = queue.pop(batch, wanted, 8)) {
        for (size_t i = 0; i < n; ++i) take(batch[i]);
      }
    });
  }
  // All copying is over.
  void finish() {
    memory.stop_serving();
    if (!writer_.joinable()) return;
    queue.close();
    writer_.join();
  }
  void expect_image_of_the_stop() {
    expect_pages_of_the_stop();
    auto& c = copier.counters();
    ASSERT_EQ(c.sequential + c.forced + c.released, table.size());
    for (SegmentId id{0}; id.value < table.size(); ++id.value) {
      ASSERT_EQ(table.state(id), SegmentState::kCopied);
    }
  }
  // What is said to be as it was at the stop is so, and stays so until somebody is told: it is protected.
  size_t expect_kept_to_be_untouched() {
    size_t kept = 0;
    for (size_t n = 0; n < expected_.size(); ++n) {
      SegmentId id;
      const size_t i = expected_[n];
      EXPECT_TRUE(table.find(memory.page(i), &id));
      if (table.state(id) != SegmentState::kKept) continue;
      ++kept;
      EXPECT_TRUE(memory.is_protected(i)) << "page " << i;
      EXPECT_FALSE(memory.is_gone(i)) << "page " << i;
      EXPECT_EQ(value_of(memory.page(i).as()), at_stop_[n]) << "page " << i;
    }
    return kept;
  }
  void expect_pages_of_the_stop() {
    finish();
    std::vector<int> should(memory.size());
    for (size_t n = 0; n < expected_.size(); ++n) {
      size_t i = expected_[n];
      should[i] = at_stop_[n] == 0 ? 0 : 1;  // zero pages are not stored
      if (copies_[i].count == 1) {
        ASSERT_EQ(copies_[i].value, at_stop_[n]) << "page " << i;
      }
    }
    for (size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(copies_[i].count, should[i]) << "page " << i;
    ASSERT_TRUE(pool.all_free());
  }

  Arena& arena() { return arena_; }

  ModelMemory memory;
  SegmentTable table;
  BufferPool pool;
  FilledQueue queue;
  Copier copier;

 private:
  void take(const CopiedSegment& s) {
    for (size_t p = 0; p < kPerSegment; ++p) {
      if ((s.page_mask >> p & 1) == 0) continue;
      auto& copy = copies_[(s.base - memory.base()) / kPageSize + p];
      ++copy.count;
      copy.value = value_of(s.data + p * kPageSize);
    }
    pool.release(s.buffer);
  }

  struct Copy {
    int count = 0;
    uint64_t value = 0;
  };
  Arena arena_;
  std::vector<size_t> expected_;
  std::vector<uint64_t> at_stop_;
  std::vector<Copy> copies_;
  std::thread writer_;
};

// 64 pages in four segments, page i with the value i + 1.
void fill_simple(Rig& rig) {
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 64);
  rig.present(0, 64);
}

TEST(Copier, CopiesInTurnWhatNobodyTouches) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  EXPECT_TRUE(rig.copier.run());
  rig.expect_image_of_the_stop();
  EXPECT_EQ(rig.copier.counters().sequential, 4u);
  for (size_t i = 0; i < 64; ++i) EXPECT_FALSE(rig.memory.is_protected(i));
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

// Whoever handles the fault, the copier follows it.
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

TEST(Copier, VanishedMemoryLosesTheCheckpointAndNobodyWaitsForIt) {
  Rig rig(64, 4);
  fill_simple(rig);
  rig.memory.give_back(37, 1);
  rig.go();
  EXPECT_FALSE(rig.copier.run());
  EXPECT_TRUE(rig.copier.lost());
  EXPECT_EQ(rig.copier.lost_at(), rig.memory.page(32));
  EXPECT_EQ(rig.table.state({2}), SegmentState::kLost);
  rig.copier.before_release(rig.memory.pages(32, 16));
  rig.finish();
  EXPECT_TRUE(rig.pool.all_free());
}

// Memory that was read and went before it was unprotected may have been another's when it was read.
TEST(Copier, MemoryThatGoesBetweenReadingAndUnprotectingIsLost) {
  Rig rig(64, 16);
  fill_simple(rig);
  rig.go();
  rig.memory.after_read = [&](Addr a) {
    if (a == rig.memory.page(16)) rig.memory.give_back(16, 1);
  };
  EXPECT_FALSE(rig.copier.run());
  EXPECT_EQ(rig.copier.lost_at(), rig.memory.page(16));
  rig.finish();
  EXPECT_TRUE(rig.pool.all_free());
}

// The kernel puts another page in the place of one and tells nobody: the bytes may be of any time.
TEST(Copier, MemoryThatLosesItsProtectionWithoutAWordIsLost) {
  for (bool keep : {false, true}) {
    for (std::string when : {"before", "reading", "read", "forced", "saved"}) {
      Rig rig(64, 16);
      fill_simple(rig);
      rig.go();
      bool once = true;
      auto replace = [&](bool here) {
        if (here && std::exchange(once, false)) rig.memory.replace(37, 999);
      };
      if (when == "before") replace(true);
      if (when == "reading") rig.memory.after_read = [&](Addr a) { replace(a == rig.memory.page(16)); };
      if (when == "read" || when == "forced") rig.memory.after_read = [&](Addr a) { replace(a == rig.memory.page(32)); };
      if (when == "saved") rig.memory.after_read = [&](Addr a) { replace(a == rig.memory.page(48)); };
      std::thread writer;
      if (when == "forced") {
        writer = std::thread([&] { rig.memory.write(33, 5); });
        while (rig.copier.counters().faults == 0) std::this_thread::yield();
      }
      const bool complete = rig.copier.run(keep);
      if (writer.joinable()) writer.join();
      // One that is kept is looked at once more before the next checkpoint.
      EXPECT_EQ(complete, keep && when == "saved") << when << (keep ? ", keep" : "");
      if (!complete) {
        EXPECT_EQ(rig.copier.lost_at(), rig.memory.page(32)) << when;
      }
      rig.finish();
    }
  }
}

// So may be what nobody copies: pages that the image before has, and those of which it is said that there are none.
TEST(Copier, WhatIsNotCopiedMustHaveBeenProtectedToo) {
  for (bool inherited : {false, true}) {
    for (std::string when : {"never", "before", "written", "told", "released", "open", "beside an open one"}) {
      Rig rig(64, 16);
      for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
      rig.region(0, 64);
      rig.present(0, 16);
      ASSERT_TRUE(rig.table.add_window(rig.memory.pages(16, 32)));
      if (inherited) rig.table.set_present(rig.memory.pages(16, 32));
      rig.table[{1}].in_parent = rig.table[{2}].in_parent = inherited;
      rig.present(48, 16);
      rig.go();
      // A page that is copied in the pause, and never protected; its neighbours may be the parent's still.
      if (when == "open" || when == "beside an open one") {
        const size_t open = when == "open" ? 37 : 40;
        rig.table[{2}].open = true;
        rig.table.clear_present(rig.memory.pages(open, 1));
        rig.memory.unprotect(rig.memory.pages(open, 1));
      }
      if (when == "told") rig.copier.removed(rig.memory.pages(37, 1));
      if (when != "never") rig.memory.replace(37, 999);
      if (when == "released") {
        const AddrRange released = rig.memory.pages(37, 2);
        EXPECT_EQ(rig.copier.holds(released), inherited);
        if (rig.copier.holds(released)) rig.copier.before_release(released);
        rig.copier.removed(released);
      }
      std::promise<void> over;
      if (when == "written") {
        // Who handles the fault has let the thread go and not yet said what it found: all copying waits for it.
        rig.memory.in_settle = [&, once = std::make_shared<std::atomic<bool>>(true)] {
          if (once->exchange(false)) over.get_future().wait_for(std::chrono::milliseconds(100));
        };
        EXPECT_TRUE(rig.memory.write(33, 5));
      }
      const bool changed = when == "before" || when == "written" || ((when == "beside an open one" || when == "released") && inherited);
      EXPECT_EQ(rig.copier.run(), !changed) << when << inherited;
      over.set_value();
      rig.finish();
    }
  }
}

// When all has been asked for protection is taken off; who handles a fault that came before that finds nothing protected.
TEST(Copier, WhatIsWrittenWhenAllIsCopiedIsNotLost) {
  for (bool inherited : {false, true}) {
    Rig rig(64, 16);
    for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
    rig.region(0, 64);
    rig.present(0, 16);
    ASSERT_TRUE(rig.table.add_window(rig.memory.pages(16, 48)));
    if (inherited) rig.table.set_present(rig.memory.pages(16, 48));
    for (SegmentId id{1}; id.value < 4; ++id.value) rig.table[id].in_parent = inherited;
    rig.go();
    EXPECT_TRUE(rig.copier.run());
    EXPECT_TRUE(rig.memory.is_protected(37));
    rig.memory.unprotect(rig.memory.pages(32, 16));
    rig.copier.fault(rig.memory.page(37));
    EXPECT_FALSE(rig.copier.lost()) << inherited;
    EXPECT_EQ(rig.table.state({2}), SegmentState::kCopied);
  }
}

// A remove event (madvise) finds a segment in each of its states.
TEST(Copier, ARemoveEventLosesWhatIsNotSaved) {
  struct {
    const char* when;
    bool lost;
  } cases[] = {{"before", true}, {"reading", true}, {"settling", true}, {"saved", false}, {"copied", false}};
  for (auto& c : cases) {
    Rig rig(64, 16);
    fill_simple(rig);
    rig.go();
    const AddrRange removed = rig.memory.pages(33, 2);
    bool once = true;
    auto remove = [&](bool here) {
      if (here && std::exchange(once, false)) rig.copier.removed(removed);
    };
    std::string when = c.when;
    if (when == "before") rig.copier.removed(removed);
    if (when == "reading") rig.memory.after_read = [&](Addr a) { remove(a == rig.memory.page(32)); };
    if (when == "settling")
      rig.memory.in_settle = [&] { remove(rig.table.state({2}) == SegmentState::kCopying); };
    if (when == "saved") {
      rig.memory.before_unprotect = [&](AddrRange r) {
        EXPECT_TRUE(!r.contains(rig.memory.page(32)) || rig.table.state({2}) == SegmentState::kSaved);
        remove(r.contains(rig.memory.page(32)));
      };
    }
    bool complete = rig.copier.run();
    if (when == "copied") rig.copier.removed(removed);
    EXPECT_EQ(rig.copier.lost(), c.lost) << c.when;
    if (c.lost) {
      EXPECT_FALSE(complete && !rig.copier.lost()) << c.when;
      rig.finish();
    } else {
      EXPECT_TRUE(complete) << c.when;
      rig.expect_image_of_the_stop();
    }
  }
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

TEST(Copier, WhatIsSavedMayGoBeforeTheOthersAreCopied) {
  for (bool announced : {true, false}) {
    Rig rig(64, 16);
    fill_simple(rig);
    rig.go();
    rig.memory.after_read = [&](Addr a) {
      if (a != rig.memory.page(48)) return;
      EXPECT_EQ(rig.table.state({1}), SegmentState::kSaved);
      if (announced) rig.copier.before_release(rig.memory.pages(16, 16));
      rig.memory.give_back(16, 16);
    };
    // Unannounced, nothing proves that it was not another's when it was read.
    EXPECT_EQ(rig.copier.run(), announced);
    if (announced) {
      rig.expect_image_of_the_stop();
    } else {
      EXPECT_EQ(rig.copier.lost_at(), rig.memory.page(16));
      rig.finish();
      EXPECT_TRUE(rig.pool.all_free());
    }
  }
}

// The program makes its own system calls: the event finds the segment saved, and its pages are gone when the batch ends.
TEST(Copier, WhatIsSavedMayBeGivenBackUnannounced) {
  Rig rig(80, 16);
  fill_simple(rig);
  ASSERT_TRUE(rig.table.add_region({rig.memory.pages(64, 16)}));
  ASSERT_TRUE(rig.table.add_window(rig.memory.pages(64, 16)));
  rig.go();
  rig.copier.removed(rig.memory.pages(64, 1));  // that it does so is known by now
  rig.memory.after_read = [&](Addr a) {
    if (a != rig.memory.page(48)) return;
    EXPECT_EQ(rig.table.state({1}), SegmentState::kSaved);
    rig.copier.removed(rig.memory.pages(20, 2));
    rig.memory.replace(20, 0);
    rig.memory.replace(21, 0);
  };
  EXPECT_TRUE(rig.copier.run());
  rig.expect_pages_of_the_stop();
}

// A buffer for each segment but those of the batch itself: who waits for a buffer has nothing left to unprotect.
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

// One thread is about to make its copy writable; another, which waits for it, does so first, goes on and unmaps it.
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
      if (in_order) EXPECT_TRUE(rig.copier.make_writable(rig.memory.pages(16, 1)));
      else EXPECT_TRUE(rig.copier.make_writable(rig.memory.pages(first, 1)));
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
// handed_over grows by the copies that the device accepted.
void race(unsigned seed, size_t buffers, bool keep = false, std::optional<uint32_t> threshold = {},
          uint64_t* handed_over = nullptr) {
  constexpr size_t kPages = 512;
  std::mt19937 random(seed);
  Rig rig(kPages, buffers);
  for (size_t i = 0; i < kPages; ++i) rig.memory.set(i, random() % 8 == 0 ? 0 : i + 1'000'000);
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
  for (SegmentId id{0}; id.value < rig.table.size(); ++id.value) rig.table[id].heat = static_cast<uint8_t>(random() % 3);
  rig.copier.set_order(static_cast<Order>(seed % 4));
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
  EXPECT_TRUE(rig.copier.run(keep));
  if (threshold) {
    engine->stop();
    device.join();
    *handed_over += engine->counters().accepted;
  }
  over = true;
  for (auto& t : program) t.join();
  if (!keep) return rig.expect_image_of_the_stop();
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
  uint64_t handed_over = 0;
  for (unsigned seed = 301; seed <= 340 && !HasFailure(); ++seed) {
    race(seed, seed % 2 == 0 ? 32 : 4, seed % 3 == 0, seed % 4 == 0 ? 0 : seed % 4 == 1 ? 101 : 50, &handed_over);
  }
  EXPECT_GT(handed_over, 0u);
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
