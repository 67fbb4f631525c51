// Copies through the queue, one thread and virtual time: every interleaving here is on purpose.
#include "copier/engines/dma_copy_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "tests/copy_engine/memory.h"

namespace ckpt {
namespace {

constexpr int64_t kLong = 1'000'000'000'000;
constexpr size_t kRoom = 32768;
constexpr uint32_t kBurst = 1024;
constexpr int64_t kBurstNs = 2 * kBurst;  // two transfers at 1 GB/s

struct Engine : ::testing::Test {
  void SetUp() override {
    start({.slots = 4, .most_bytes = 16384, .burst_bytes = kBurst, .speed = {1'000'000'000}});
  }
  void start(const DmaSettings& settings) {
    engine.reset();
    arena.emplace();
    ASSERT_TRUE(arena->reserve(DmaCopyEngine::arena_bytes(settings)));
    engine.emplace(memory, listener, settings);
    ASSERT_TRUE(engine->reserve(*arena));
  }
  // Copy number n: its own source and target.
  CopyRequest request(uint64_t n, uint32_t bytes = 4096, uint64_t pages = ~0ull) {
    while (sources.size() <= n) {
      sources.push_back(pattern(kRoom, static_cast<uint32_t>(sources.size() + 1)));
      targets.emplace_back(kRoom);
    }
    return {n, Addr::of(sources[n].data()), targets[n].data(), bytes, pages, true};
  }
  CopyTicket submit(const CopyRequest& r, CopyPriority priority = CopyPriority::kSequential) {
    CopyTicket ticket;
    EXPECT_TRUE(engine->submit(r, priority, &ticket));
    return ticket;
  }
  bool copied_to(uint64_t n, size_t offset, size_t bytes) {
    return std::memcmp(sources[n].data() + offset, targets[n].data() + offset, bytes) == 0;
  }
  bool untouched_from(uint64_t n, size_t offset) {
    return std::all_of(targets[n].begin() + static_cast<std::ptrdiff_t>(offset), targets[n].end(),
                       [](std::byte b) { return b == std::byte{0}; });
  }

  TestMemory memory;
  TestListener listener;
  std::optional<Arena> arena;
  std::optional<DmaCopyEngine> engine;
  std::vector<std::vector<std::byte>> sources, targets;
};

TEST_F(Engine, CopiesInOrderAndTellsTheListenerOnce) {
  for (uint64_t n = 0; n < 3; ++n) submit(request(n));
  engine->run_until(4 * kBurstNs - 1);
  EXPECT_TRUE(listener.order.empty());
  engine->run_until(4 * kBurstNs);
  EXPECT_EQ(listener.order, std::vector<uint64_t>{0});
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, (std::vector<uint64_t>{0, 1, 2}));
  for (uint64_t n = 0; n < 3; ++n) {
    EXPECT_EQ(listener.results[n], 0);
    EXPECT_TRUE(copied_to(n, 0, 4096));
    EXPECT_TRUE(untouched_from(n, 4096));
  }
}

TEST_F(Engine, CopiesOnlyThePagesOfTheRequest) {
  submit(request(0, 16384, 0b1010));
  engine->run_until(kLong);
  EXPECT_TRUE(copied_to(0, 4096, 4096));
  EXPECT_TRUE(copied_to(0, 12288, 4096));
  EXPECT_EQ(targets[0][0], std::byte{0});
  EXPECT_EQ(targets[0][8192], std::byte{0});
  EXPECT_EQ(engine->device_counters().bytes.load(), 2u * 8192);
}

TEST_F(Engine, ARequestWithoutPagesIsDoneInItsTurn) {
  submit(request(0));
  submit(request(1, 4096, 0));
  submit(request(2));
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_TRUE(untouched_from(1, 0));
}

TEST_F(Engine, OddSizesAndPagesEverywhereFit) {
  for (uint32_t burst : {512u, 1000u, 4096u, 5000u, 16384u}) {
    start({.slots = 2, .most_bytes = 32768, .burst_bytes = burst, .speed = {}});
    sources.clear();
    targets.clear();
    submit(request(0, 32768, 0x55));
    submit(request(1, 1337));
    engine->run_until(kLong);
    for (size_t page = 0; page < 8; page += 2) EXPECT_TRUE(copied_to(0, page * 4096, 4096)) << burst;
    EXPECT_EQ(targets[0][4096], std::byte{0});
    EXPECT_TRUE(copied_to(1, 0, 1337));
    EXPECT_TRUE(untouched_from(1, 1337));
  }
}

TEST_F(Engine, ForcedCopiesOvertakeSequentialOnes) {
  submit(request(0));
  submit(request(1));
  engine->run_until(kBurstNs);
  submit(request(2), CopyPriority::kForced);
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, (std::vector<uint64_t>{2, 0, 1}));
  // A burst of the forced copy came between the bursts of the other.
  for (uint64_t n = 0; n < 3; ++n) EXPECT_TRUE(copied_to(n, 0, 4096));
}

TEST_F(Engine, AFullQueueRefusesAndGoesOnWhenASlotIsFree) {
  for (uint64_t n = 0; n < 4; ++n) submit(request(n));
  CopyTicket ticket;
  EXPECT_FALSE(engine->submit(request(4), CopyPriority::kSequential, &ticket));
  EXPECT_TRUE(engine->submit(request(5), CopyPriority::kForced, &ticket));  // a queue of its own
  engine->run_until(8 * kBurstNs);                                          // 5, then 0
  EXPECT_TRUE(engine->submit(request(4), CopyPriority::kSequential, &ticket));
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, (std::vector<uint64_t>{5, 0, 1, 2, 3, 4}));
  EXPECT_EQ(engine->counters().refused.load(), 1u);
}

TEST_F(Engine, RefusesWhatIsTooLarge) {
  CopyTicket ticket;
  EXPECT_FALSE(engine->submit(request(0, 16385), CopyPriority::kSequential, &ticket));
}

TEST_F(Engine, BelowTheThresholdACopyIsTakenBack) {
  CopyTicket ticket = submit(request(0));  // 8 blocks
  submit(request(1));
  engine->run_until(kBurstNs * 3 / 2);  // 3 of 8 blocks: 37.5 %
  EXPECT_EQ(engine->resync(ticket, 38), Resync::kAborted);
  const uint64_t reads = memory.reads;
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, std::vector<uint64_t>{1});  // the other one is not affected
  EXPECT_TRUE(untouched_from(0, 1024));
  EXPECT_EQ(memory.reads - reads, 4u);  // of the other one only
  EXPECT_EQ(engine->counters().aborted.load(), 1u);
}

TEST_F(Engine, FromTheThresholdOnTheCpuFinishes) {
  CopyTicket ticket = submit(request(0));
  submit(request(1));
  engine->run_until(kBurstNs * 3 / 2);
  EXPECT_EQ(engine->resync(ticket, 37), Resync::kCommitted);
  EXPECT_TRUE(copied_to(0, 0, 4096));  // at once
  EXPECT_TRUE(untouched_from(0, 4096));
  // The burst that was on the card only, and the two that were not begun.
  EXPECT_EQ(engine->counters().finished_bytes.load(), 3u * kBurst);
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, std::vector<uint64_t>{1});
  EXPECT_TRUE(copied_to(1, 0, 4096));
}

TEST_F(Engine, EveryProgressAgainstEveryThreshold) {
  for (uint32_t blocks = 0; blocks <= 8; ++blocks) {
    for (uint32_t threshold = 0; threshold <= 101; ++threshold) {
      SetUp();
      for (auto& t : targets) std::fill(t.begin(), t.end(), std::byte{0});
      listener.order.clear();
      CopyTicket ticket = submit(request(0));
      engine->run_until(int64_t{blocks} * kBurst);
      Resync outcome = engine->resync(ticket, threshold);
      if (blocks == 8) {
        EXPECT_EQ(outcome, Resync::kDone);
        EXPECT_EQ(listener.order.size(), 1u);
      } else if (blocks * 100 < threshold * 8) {
        EXPECT_EQ(outcome, Resync::kAborted);
        EXPECT_TRUE(untouched_from(0, blocks / 2 * kBurst));
      } else {
        EXPECT_EQ(outcome, Resync::kCommitted);
        EXPECT_TRUE(copied_to(0, 0, 4096));
        EXPECT_EQ(engine->counters().finished_bytes.load(), 4096u - blocks / 2 * kBurst);
      }
      engine->run_until(kLong);
      EXPECT_EQ(listener.order.size(), blocks == 8 ? 1u : 0u);
    }
  }
}

TEST_F(Engine, ATicketIsGoodOnce) {
  CopyTicket ticket = submit(request(0));
  EXPECT_EQ(engine->resync(ticket, 0), Resync::kCommitted);
  EXPECT_EQ(engine->resync(ticket, 0), Resync::kDone);
  engine->run_until(kLong);
  // The slot's next use is another copy.
  for (uint64_t n = 1; n < 5; ++n) submit(request(n));
  EXPECT_EQ(engine->resync(ticket, 101), Resync::kDone);
  engine->run_until(2 * kLong);
  EXPECT_EQ(listener.order, (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(engine->resync(CopyTicket{}, 101), Resync::kDone);
}

TEST_F(Engine, ATakenSlotIsFreeOnlyWhenTheDeviceHasPassedIt) {
  std::vector<CopyTicket> tickets;
  for (uint64_t n = 0; n < 4; ++n) tickets.push_back(submit(request(n)));
  for (CopyTicket t : tickets) EXPECT_EQ(engine->resync(t, 101), Resync::kAborted);
  CopyTicket ticket;
  EXPECT_FALSE(engine->submit(request(4), CopyPriority::kSequential, &ticket));
  engine->run_until(0);  // passing over takes no time
  EXPECT_TRUE(engine->submit(request(4), CopyPriority::kSequential, &ticket));
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, std::vector<uint64_t>{4});
}

TEST_F(Engine, MemoryThatVanishesFailsTheCopyAndNoOther) {
  submit(request(0));
  submit(request(1));
  memory.vanished = {Addr::of(sources[0].data()) + 1500, Addr::of(sources[0].data()) + 1501};
  engine->run_until(kLong);
  EXPECT_EQ(listener.order, (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(listener.results[0], -EFAULT);
  EXPECT_EQ(listener.results[1], 0);
  EXPECT_TRUE(untouched_from(0, 2048));  // nothing after the failure
}

TEST_F(Engine, MemoryThatVanishesBeforeTheCpuFinishesFailsTheResync) {
  CopyTicket ticket = submit(request(0));
  engine->run_until(kBurstNs);
  memory.vanished = {Addr::of(sources[0].data()) + 3000, Addr::of(sources[0].data()) + 3001};
  EXPECT_EQ(engine->resync(ticket, 0), Resync::kFailed);
  // Found by the device first.
  CopyTicket second = submit(request(1));
  memory.vanished = {Addr::of(sources[1].data()) + 10, Addr::of(sources[1].data()) + 11};
  engine->run_until(2 * kBurstNs);
  EXPECT_EQ(engine->resync(second, 0), Resync::kDone);
  EXPECT_EQ(listener.results[1], -EFAULT);
}

TEST_F(Engine, UnreadableMemoryIsReadAsSuch) {
  CopyRequest r = request(0);
  r.readable = false;
  CopyTicket ticket = submit(r);
  engine->run_until(kBurstNs);
  EXPECT_EQ(engine->resync(ticket, 0), Resync::kCommitted);
  EXPECT_EQ(memory.unreadable_reads, memory.reads);
}

TEST_F(Engine, TheCpuEngineIsDoneAtOnce) {
  CpuCopyEngine cpu(memory, listener);
  CopyTicket ticket;
  EXPECT_TRUE(cpu.submit(request(0, 16384, 0b0110), CopyPriority::kForced, &ticket));
  EXPECT_EQ(listener.order, std::vector<uint64_t>{0});
  EXPECT_EQ(cpu.resync(ticket, 101), Resync::kDone);
  EXPECT_TRUE(copied_to(0, 4096, 8192));
  EXPECT_EQ(targets[0][0], std::byte{0});
  EXPECT_TRUE(untouched_from(0, 12288));
  memory.vanished = {Addr::of(sources[0].data()), Addr::of(sources[0].data()) + kRoom};
  EXPECT_TRUE(cpu.submit(request(0), CopyPriority::kForced, &ticket));
  EXPECT_EQ(listener.results[0], -EFAULT);
}

// Sequences of operations against a model that knows only: accepted copies end exactly once, in the way
// that was said, with the bytes that were there.
TEST_F(Engine, RandomOperations) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random); };
    start({.slots = 1 + below(6),
           .most_bytes = 16384,
           .burst_bytes = 256u << below(6),
           .speed = {1'000'000'000}});
    listener.times.clear();
    listener.results.clear();
    sources.clear();
    targets.clear();
    std::map<uint64_t, CopyTicket> open;
    std::map<uint64_t, CopyRequest> requests;
    std::map<uint64_t, Resync> settled;
    int64_t now = 0;
    uint64_t next = 0;
    for (int step = 0; step < 120; ++step) {
      switch (below(3)) {
        case 0: {
          CopyRequest r = request(next, 1 + below(16384), below(16));
          CopyTicket ticket;
          if (!engine->submit(r, below(3) == 0 ? CopyPriority::kForced : CopyPriority::kSequential, &ticket))
            break;
          open[next] = ticket;
          requests[next] = r;
          ++next;
          break;
        }
        case 1: {
          if (next == 0) break;
          uint64_t n = below(static_cast<uint32_t>(next));
          const bool told = listener.times.contains(n);
          Resync outcome = engine->resync(open[n], below(102));
          EXPECT_EQ(outcome == Resync::kDone, told || settled.contains(n)) << seed;
          if (outcome != Resync::kDone) settled[n] = outcome;
          break;
        }
        default:
          now += below(20000);
          engine->run_until(now);
      }
    }
    engine->run_until(now + kLong);
    for (uint64_t n = 0; n < next; ++n) {
      EXPECT_EQ(listener.times[n] + static_cast<int>(settled.contains(n)), 1) << seed;
      if (settled.contains(n) && settled[n] == Resync::kAborted) continue;
      EXPECT_TRUE(!settled.contains(n) || settled[n] == Resync::kCommitted);
      const CopyRequest& r = requests[n];
      for (uint64_t page = 0; page * 4096 < r.bytes; ++page) {
        const size_t bytes = std::min<size_t>(r.bytes - page * 4096, 4096);
        const bool wanted = (r.pages >> page & 1) != 0;
        EXPECT_EQ(wanted, copied_to(n, page * 4096, bytes)) << seed;
      }
      EXPECT_TRUE(untouched_from(n, r.bytes)) << seed;
    }
  }
}

}  // namespace
}  // namespace ckpt
