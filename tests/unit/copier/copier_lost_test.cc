// Memory that goes, or is another's, while it is copied: whatever the kernel tells of it, an image never has
// what was not there at the stop.
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/files/task_text.h"
#include "tests/unit/copier/copier_rig.h"

namespace ckpt {
namespace {

using test::fill_simple;
using test::kPerSegment;
using test::Rig;

// 64 pages as in fill_simple(), of which `count` behind the first segment are not copied: the parent has
// them, or none of them exists.
void fill_around(Rig& rig, size_t count, bool inherited) {
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 64);
  rig.present(0, 16);
  const AddrRange left_out = rig.memory.pages(16, count);
  const SegmentId first{static_cast<uint32_t>(rig.table.size())};
  ASSERT_TRUE(rig.table.add_window(left_out));
  if (inherited) rig.table.set_present(left_out);
  for (SegmentId id = first; id.value < rig.table.size(); ++id.value) rig.table[id].in_parent = inherited;
  if (16 + count < 64) rig.present(16 + count, 48 - count);
}

TEST(Copier, VanishedMemoryLosesTheCheckpointAndNobodyWaitsForIt) {
  for (uint32_t together : {1, 4}) {
    for (uint32_t gone : {0, 1, 2}) {
      Rig rig(64, 4);
      rig.copier.set_together(together * kPerSegment * kPageSize);
      fill_simple(rig);
      const size_t first = gone * kPerSegment;
      rig.memory.give_back(first + 5, 1);
      rig.go();
      EXPECT_FALSE(rig.copier.run());
      EXPECT_TRUE(rig.copier.lost());
      EXPECT_EQ(rig.copier.lost_at(), rig.memory.page(first));
      EXPECT_EQ(rig.table.state({gone}), SegmentState::kLost);
      for (SegmentId id{0}; id.value < rig.table.size(); ++id.value) {
        EXPECT_NE(rig.table.state(id), SegmentState::kCopying) << id.value;
        EXPECT_NE(rig.table.state(id), SegmentState::kSaved) << id.value;
      }
      rig.copier.before_release(rig.memory.pages(first, kPerSegment));
      rig.finish();
      EXPECT_TRUE(rig.pool.all_free());
    }
  }
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
  for (bool leave_protected : {false, true}) {
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
      if (when == "read" || when == "forced")
        rig.memory.after_read = [&](Addr a) { replace(a == rig.memory.page(32)); };
      if (when == "saved") rig.memory.after_read = [&](Addr a) { replace(a == rig.memory.page(48)); };
      std::thread writer;
      if (when == "forced") {
        writer = std::thread([&] { rig.memory.write(33, 5); });
        while (rig.copier.counters().faults == 0) std::this_thread::yield();
      }
      const bool complete = rig.copier.run(leave_protected);
      if (writer.joinable()) writer.join();
      // A protection that is kept is looked at once more before the next checkpoint.
      EXPECT_EQ(complete, leave_protected && when == "saved")
          << when << (leave_protected ? ", still protected" : "");
      if (!complete) {
        EXPECT_EQ(rig.copier.lost_at(), rig.memory.page(32)) << when;
      }
      rig.finish();
    }
  }
}

// So may be what nobody copies: pages that the image before has, and those of which it is said that there are
// none.
TEST(Copier, WhatIsNotCopiedMustHaveBeenProtectedToo) {
  for (bool inherited : {false, true}) {
    for (std::string when :
         {"never", "before", "written", "told", "released", "open", "beside an open one"}) {
      Rig rig(64, 16);
      fill_around(rig, 32, inherited);
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
      std::atomic<bool> first{true}, runs{false}, over{false}, was_over{false};
      if (when == "written") {
        // The handler of the fault has let the thread go and not yet said what it found: all copying waits
        // for it, and ends behind it.
        rig.memory.in_settle = [&, copying = gettid()] {
          if (gettid() == copying || !first.exchange(false)) return;
          while (!runs || !(over || ProcText(getpid(), copying, "/status").state() == 'S'))
            std::this_thread::yield();
          was_over = over.load();
        };
        EXPECT_TRUE(rig.memory.write(33, 5));
      }
      const bool changed = when == "before" || when == "written" ||
                           ((when == "beside an open one" || when == "released") && inherited);
      runs = true;
      EXPECT_EQ(rig.copier.run(), !changed) << when << inherited;
      over = true;
      rig.finish();
      EXPECT_FALSE(was_over) << when << inherited;
    }
  }
}

// When all has been asked for protection is taken off; who handles a fault that came before that finds
// nothing protected.
TEST(Copier, WhatIsWrittenWhenAllIsCopiedIsNotLost) {
  for (bool inherited : {false, true}) {
    Rig rig(64, 16);
    fill_around(rig, 48, inherited);
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

// The program makes its own system calls: the event finds the segment saved, and its pages are gone when the
// batch ends.
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

}  // namespace
}  // namespace ckpt
