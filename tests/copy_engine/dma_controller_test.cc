// The device alone: what CCL v3.0, section 3.1 says of it, in virtual time.
#include "copier/engines/dma_controller.h"

#include <gtest/gtest.h>

#include "tests/copy_engine/memory.h"

namespace ckpt {
namespace {

constexpr int64_t kLong = 1'000'000'000'000;

struct Device : ::testing::Test, DmaObserver {
  void SetUp() override {
    ASSERT_TRUE(arena.reserve(1 << 20));
    start({});
  }
  void start(DmaSpeed speed) {
    controller.emplace(memory, *this, speed);
    ASSERT_TRUE(controller->reserve(arena, 4 * kBurst));
    log.clear();
  }
  void passed(unsigned channel, ControlBlock& block, long result) override {
    log.push_back({channel, &block, result});
  }
  // A block that is terminal until it is made valid.
  void fill(ControlBlock& b, const void* host, uint32_t length, uint32_t card = 0) {
    b.host = reinterpret_cast<uint64_t>(host);
    b.card = card;
    b.length.store(length);
  }
  void valid(ControlBlock& b, ControlBlock* next, bool to_card) {
    b.next.store(reinterpret_cast<uint64_t>(next) | (to_card ? ControlBlock::kToCard : 0));
  }
  static bool terminal(const ControlBlock& b) { return (b.next.load() & ControlBlock::kTerminal) != 0; }

  static constexpr uint32_t kBurst = 1024;
  struct Passed {
    unsigned channel;
    ControlBlock* block;
    long result;
  };
  Arena arena;
  TestMemory memory;
  std::optional<DmaController> controller;
  std::vector<Passed> log;
  std::vector<std::byte> source = pattern(4 * kBurst, 1), target = std::vector<std::byte>(4 * kBurst);
};

TEST_F(Device, WalksAChainThroughTheCardUntilTheTerminalBlock) {
  ControlBlock b[5];
  for (int i = 0; i < 2; ++i) {
    fill(b[2 * i], source.data() + i * kBurst, kBurst);
    fill(b[2 * i + 1], target.data() + i * kBurst, kBurst);
  }
  fill(b[4], target.data(), kBurst);  // terminal: must not be executed
  for (int i = 0; i < 4; ++i) valid(b[i], &b[i + 1], i % 2 == 0);
  controller->set_base(1, b);
  controller->trigger(1);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(log[i].block, &b[i]);
    EXPECT_TRUE(terminal(b[i]));
  }
  EXPECT_EQ(std::memcmp(source.data(), target.data(), 2 * kBurst), 0);
  EXPECT_EQ(target[2 * kBurst], std::byte{0});
  EXPECT_EQ(controller->counters().bytes.load(), 4u * kBurst);
}

TEST_F(Device, SleepsAtATerminalBlockUntilItIsValidAndTriggered) {
  ControlBlock b[3];
  fill(b[0], source.data(), kBurst);
  fill(b[1], target.data(), kBurst);
  valid(b[0], &b[1], true);
  controller->set_base(0, b);
  controller->trigger(0);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 1u);
  controller->trigger(0);  // harmless: still terminal
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 1u);
  valid(b[1], &b[2], false);
  controller->run_until(kLong);  // valid, but the channel sleeps
  ASSERT_EQ(log.size(), 1u);
  controller->trigger(0);
  controller->trigger(0);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 2u);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), kBurst), 0);
}

TEST_F(Device, ABlockWithoutANextOneIsTerminal) {
  ControlBlock b;
  fill(b, source.data(), kBurst);
  valid(b, nullptr, true);
  controller->set_base(0, &b);
  controller->trigger(0);
  controller->run_until(kLong);
  EXPECT_TRUE(log.empty());
  EXPECT_EQ(controller->counters().executed.load(), 0u);
}

TEST_F(Device, PassesOverBlocksOfLengthZero) {
  ControlBlock b[4];
  fill(b[0], source.data(), 0);
  fill(b[1], source.data(), kBurst);
  fill(b[2], target.data(), 0);
  for (int i = 0; i < 3; ++i) valid(b[i], &b[i + 1], i < 2);
  controller->set_base(3, b);
  controller->trigger(3);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(controller->counters().passed_over.load(), 2u);
  EXPECT_EQ(controller->counters().executed.load(), 1u);
  EXPECT_EQ(target[0], std::byte{0});
  EXPECT_TRUE(terminal(b[0]));
  EXPECT_TRUE(terminal(b[2]));
}

TEST_F(Device, ARevokedBlockIsNotExecutedAndALatchedOneCannotBeRevoked) {
  ControlBlock b[3];
  fill(b[0], source.data(), kBurst);
  fill(b[1], target.data(), kBurst);
  valid(b[0], &b[1], true);
  valid(b[1], &b[2], false);
  EXPECT_TRUE(b[1].revoke());
  controller->set_base(0, b);
  controller->trigger(0);
  controller->run_until(kLong);
  EXPECT_EQ(controller->counters().executed.load(), 1u);
  EXPECT_EQ(target[0], std::byte{0});
  EXPECT_FALSE(b[0].revoke());
}

TEST_F(Device, ServesTheChannelWithTheLowestNumberFromBlockToBlock) {
  start({.bytes_per_second = 1'000'000'000});  // 1024 ns a block
  ControlBlock low[4], high[2];
  for (int i = 0; i < 3; ++i) {
    fill(low[i], source.data(), kBurst);
    valid(low[i], &low[i + 1], true);
  }
  fill(high[0], source.data(), kBurst, kBurst);
  controller->set_base(3, low);
  controller->set_base(1, high);
  controller->trigger(3);
  controller->run_until(1024);
  ASSERT_EQ(log.size(), 1u);
  valid(high[0], &high[1], true);
  controller->trigger(1);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[1].block, &high[0]);
  EXPECT_EQ(log[2].block, &low[1]);
}

TEST_F(Device, AllFourChannelsRunInTheirOrder) {
  ControlBlock b[4][2];
  for (unsigned c = 0; c < 4; ++c) {
    fill(b[c][0], source.data(), kBurst);
    valid(b[c][0], &b[c][1], true);
    controller->set_base(c, b[c]);
  }
  for (unsigned c : {2u, 0u, 3u, 1u}) controller->trigger(c);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 4u);
  for (unsigned c = 0; c < 4; ++c) EXPECT_EQ(log[c].channel, c);
}

TEST_F(Device, TakesTheTimeThatItsBandwidthSays) {
  start({.bytes_per_second = 100'000'000});  // 10,240 ns a block
  ControlBlock b[4];
  for (int i = 0; i < 3; ++i) {
    fill(b[i], source.data(), kBurst);
    valid(b[i], &b[i + 1], true);
  }
  controller->set_base(0, b);
  controller->run_until(500);
  controller->trigger(0);  // begins at 500
  controller->run_until(500 + 10'239);
  EXPECT_EQ(log.size(), 0u);
  controller->run_until(500 + 10'240);
  EXPECT_EQ(log.size(), 1u);
  controller->run_until(500 + 3 * 10'240 - 1);
  EXPECT_EQ(log.size(), 2u);
  controller->run_until(500 + 3 * 10'240);
  EXPECT_EQ(log.size(), 3u);
}

TEST_F(Device, MemoryThatIsNotThereIsReported) {
  memory.vanished = {Addr::of(source.data()), Addr::of(source.data()) + 1};
  ControlBlock b[2];
  fill(b[0], source.data(), kBurst);
  valid(b[0], &b[1], true);
  controller->set_base(0, b);
  controller->trigger(0);
  controller->run_until(kLong);
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].result, -EFAULT);
}

}  // namespace
}  // namespace ckpt
