#include "copier/filled_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "copier/buffer_pool.h"

namespace ckpt {
namespace {

CopiedSegment numbered(uint64_t n, uint32_t buffer = 0) { return {Addr{n}, 1, nullptr, buffer}; }

class Queue : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(arena_.reserve(1 << 16));
    ASSERT_TRUE(queue_.reserve(arena_, 8));
  }
  Arena arena_;
  FilledQueue queue_;
  CopiedSegment out_[8];
};

TEST_F(Queue, KeepsTheOrderAroundItsEnd) {
  uint64_t in = 0, expected = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 5; ++i) queue_.push(numbered(in++));
    size_t n = queue_.pop(out_, 5, 3);
    ASSERT_EQ(n, 3u) << "no more than asked for";
    n += queue_.pop(out_ + 3, 2, 8);
    ASSERT_EQ(n, 5u);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(out_[i].base.value, expected++);
  }
}

TEST_F(Queue, EndsWithWhatIsLeft) {
  queue_.push(numbered(1));
  queue_.push(numbered(2));
  queue_.close();
  ASSERT_EQ(queue_.pop(out_, 4, 8), 2u) << "less than a batch, but no more will come";
  EXPECT_EQ(queue_.pop(out_, 4, 8), 0u);
  EXPECT_EQ(queue_.pop(out_, 4, 8), 0u);
}

TEST_F(Queue, CloseWakesTheWriter) {
  for (int round = 0; round < 200; ++round) {
    arena_.reset();
    ASSERT_TRUE(queue_.reserve(arena_, 8));
    size_t got = 99;
    std::thread writer([&] { got = queue_.pop(out_, 4, 8); });
    if (round % 2 == 0) queue_.push(numbered(1));
    if (round % 3 == 0) std::this_thread::yield();
    queue_.close();
    writer.join();
    ASSERT_EQ(got, round % 2 == 0 ? 1u : 0u);
  }
}

// As in a checkpoint: every entry holds a buffer of a pool that is smaller than all that is pushed. The
// writer gives buffers back a batch at a time. Nobody may wait for ever, nothing is lost or doubled.
TEST_F(Queue, CarriesEverythingThroughASmallPool) {
  constexpr uint32_t kBuffers = 8;
  constexpr int kProducers = 3, kEach = 3000;
  BufferPool pool;
  ASSERT_TRUE(pool.reserve(kBuffers * kPageSize, kPageSize));
  std::vector<int> seen(kProducers * kEach);
  std::vector<uint64_t> last(kProducers);
  int out_of_order = 0;
  std::thread writer([&] {
    CopiedSegment batch[8];
    while (size_t n = queue_.pop(batch, kBuffers / 4, 8)) {
      for (size_t i = 0; i < n; ++i) {
        uint64_t number = batch[i].base.value;
        ++seen[number];
        uint64_t producer = number / kEach;
        if (number + 1 <= last[producer]) ++out_of_order;
        last[producer] = number + 1;
        pool.release(batch[i].buffer);
      }
    }
  });
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        uint32_t b = pool.acquire(p == 0 ? CopyKind::kSequential : CopyKind::kForced);
        queue_.push(numbered(static_cast<uint64_t>(p) * kEach + static_cast<uint64_t>(i), b));
      }
    });
  }
  for (auto& p : producers) p.join();
  queue_.close();
  writer.join();
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1) << i;
  EXPECT_EQ(out_of_order, 0) << "each producer's segments come in its order";
  EXPECT_TRUE(pool.all_free());
  pool.release_memory();
}

}  // namespace
}  // namespace ckpt
