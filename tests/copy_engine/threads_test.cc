// The device on a thread of its own, as in a checkpoint; most useful under ThreadSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>

#include "copier/engines/dma_copy_engine.h"
#include "tests/copy_engine/memory.h"

namespace ckpt {
namespace {

constexpr uint32_t kBytes = 16384;

struct Copy {
  std::vector<std::byte> source, target = std::vector<std::byte>(kBytes);
  CopyTicket ticket;
  std::atomic<int> submitted{0};
  std::atomic<int> completed{0};
  bool aborted = false;
};

class Counter final : public CopyListener {
 public:
  explicit Counter(std::vector<Copy>& copies) : copies_(copies) {}
  void copied(uint64_t cookie, long result) override {
    EXPECT_EQ(result, 0);
    copies_[cookie].completed.fetch_add(1);
    done.fetch_add(1);
    done.notify_all();
  }
  std::atomic<uint32_t> done{0};

 private:
  std::vector<Copy>& copies_;
};

// One thread submits, one settles some of the copies early, the device works. The thread that completes a
// copy changes its source at once: the bytes in the buffer must be those of before.
void run_threads(const DmaSettings& settings, uint32_t seed) {
  constexpr size_t kCopies = 400;
  std::vector<Copy> copies(kCopies);
  for (size_t n = 0; n < kCopies; ++n) copies[n].source = pattern(kBytes, static_cast<uint32_t>(n));
  TestMemory memory;
  Counter listener(copies);
  Arena arena;
  ASSERT_TRUE(arena.reserve(DmaCopyEngine::arena_bytes(settings)));
  DmaCopyEngine engine(memory, listener, settings);
  ASSERT_TRUE(engine.reserve(arena));

  std::thread device([&] { engine.run(); });
  std::thread settler([&] {
    std::mt19937 random(seed);
    for (Copy& c : copies) {
      c.submitted.wait(0);
      if (random() % 3 == 0) continue;
      Resync outcome = engine.resync(c.ticket, random() % 102);
      EXPECT_NE(outcome, Resync::kFailed);
      if (outcome == Resync::kDone) continue;
      c.aborted = outcome == Resync::kAborted;
      // Ours alone from here on.
      std::fill(c.source.begin(), c.source.end(), std::byte{0xee});
      c.completed.fetch_add(1);
      listener.done.fetch_add(1);
      listener.done.notify_all();
    }
  });
  for (size_t n = 0; n < kCopies; ++n) {
    const CopyRequest request{n,   Addr::of(copies[n].source.data()), copies[n].target.data(), kBytes, ~0ull,
                              true};
    const auto priority = n % 5 == 0 ? CopyPriority::kForced : CopyPriority::kSequential;
    while (!engine.submit(request, priority, &copies[n].ticket)) {
      // Full: until one more is through.
      const uint32_t done = listener.done.load();
      if (done < n)
        listener.done.wait(done);
      else
        std::this_thread::yield();  // settled, but the device has still to pass over it
    }
    copies[n].submitted.store(1);
    copies[n].submitted.notify_all();
  }
  settler.join();
  for (uint32_t done; (done = listener.done.load()) < kCopies;) listener.done.wait(done);
  engine.stop();
  device.join();
  for (size_t n = 0; n < kCopies; ++n) {
    EXPECT_EQ(copies[n].completed.load(), 1) << n;
    if (copies[n].aborted) continue;
    EXPECT_EQ(copies[n].target, pattern(kBytes, static_cast<uint32_t>(n))) << n;
  }
  EXPECT_EQ(engine.counters().accepted.load(), kCopies);
}

TEST(Threads, EveryCopyIsCompletedOnceByOneOfBoth) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    run_threads({.slots = 8, .most_bytes = kBytes, .burst_bytes = 1024, .speed = {}}, seed);
  }
}

TEST(Threads, WithAQueueOfOneSlot) {
  run_threads({.slots = 1, .most_bytes = kBytes, .burst_bytes = 4096, .speed = {}}, 1);
}

TEST(Threads, WithASlowDevice) {
  run_threads({.slots = 16, .most_bytes = kBytes, .burst_bytes = 512, .speed = {400'000'000}}, 1);
}

TEST(Threads, ADeviceWithoutWorkStops) {
  TestMemory memory;
  TestListener listener;
  Arena arena;
  const DmaSettings settings;
  ASSERT_TRUE(arena.reserve(DmaCopyEngine::arena_bytes(settings)));
  DmaCopyEngine engine(memory, listener, settings);
  ASSERT_TRUE(engine.reserve(arena));
  std::thread device([&] { engine.run(); });
  engine.stop();
  device.join();
  EXPECT_TRUE(listener.order.empty());
}

}  // namespace
}  // namespace ckpt
