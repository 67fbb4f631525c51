// One checkpoint of a model of memory, for tests of the copier.
#pragma once

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "copier/copier.h"
#include "tests/unit/copier/model_memory.h"

namespace ckpt::test {

inline constexpr size_t kPerSegment = 16;  // pages

class Rig {
 public:
  Rig(size_t pages, size_t buffers) : memory(pages), copier(table, pool, queue, memory), copies_(pages) {
    EXPECT_TRUE(arena_.reserve(4 << 20));
    EXPECT_TRUE(table.reserve(arena_, kPerSegment * kPageSize, pages / kPerSegment + 64, 64));
    EXPECT_TRUE(pool.reserve(buffers * kPerSegment * kPageSize, kPerSegment * kPageSize));
    EXPECT_TRUE(queue.reserve(arena_, static_cast<uint32_t>(buffers) + 1));
    copier.set_together(kPerSegment * kPageSize);  // each alone: what happens in between can be named
  }
  ~Rig() {
    finish();
    pool.release_memory();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void region(size_t first, size_t count, bool readable = true) {
    EXPECT_TRUE(table.add_region({memory.pages(first, count), readable}));
  }
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
  // A segment that is said to be unchanged since the stop is so, and stays so until a write is told: it is
  // protected.
  size_t expect_kept_to_be_untouched() {
    size_t kept = 0;
    for (size_t n = 0; n < expected_.size(); ++n) {
      SegmentId id;
      const size_t i = expected_[n];
      EXPECT_TRUE(table.find(memory.page(i), &id));
      if (table.state(id) != SegmentState::kUnchanged) continue;
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
inline void fill_simple(Rig& rig) {
  for (size_t i = 0; i < 64; ++i) rig.memory.set(i, i + 1);
  rig.region(0, 64);
  rig.present(0, 64);
}

}  // namespace ckpt::test
