#include "restart/channels/port_wait.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(PortWait, TheLastEndedConnectionMayGoBetweenTheRefusalAndTheLook) {
  PortWait wait(0);
  EXPECT_TRUE(wait.ask_again(1, 59 * kSecond));
  EXPECT_TRUE(wait.ask_again(0, 60 * kSecond));
}

TEST(PortWait, APortOfSomebodyIsRefusedSoon) {
  PortWait wait(0);
  int asked = 1;
  while (wait.ask_again(0, 0)) ++asked;
  EXPECT_EQ(asked, PortWait::kAsksUnexplained);
}

TEST(PortWait, EndedConnectionsExplainARefusalAnew) {
  PortWait wait(0);
  for (int round = 0; round < 3 * PortWait::kAsksUnexplained; ++round)
    EXPECT_TRUE(wait.ask_again(round % 2 == 0 ? 1 : 0, round));
}

TEST(PortWait, AfterAMachineStoodStillThePortIsAskedForOnceMore) {
  PortWait wait(0);
  EXPECT_TRUE(wait.ask_again(1, 10 * kSecond));
  EXPECT_TRUE(wait.ask_again(1, 100 * kSecond));
  EXPECT_FALSE(wait.ask_again(1, 101 * kSecond));
}

}  // namespace
}  // namespace ckpt
