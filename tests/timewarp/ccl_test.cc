// The CCL interface by its own names, without the engine; devices that are slow, stand still, or work out of
// turn.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "ckpt_timewarp.h"

namespace timewarp_test {
namespace {

class CclTest : public testing::Test {
 protected:
  static constexpr int kLps = 4;
  static constexpr size_t kBytes = 6000;

  void open(uint64_t speed, ckpt_tw_copier copier = CKPT_TW_DEVICE, int mono = 0) {
    ckpt_tw_options o;
    ckpt_tw_defaults(&o);
    o.device_bytes_per_second = speed;
    o.copier = copier;
    o.monoprogrammed = mono;
    ASSERT_EQ(ccl_init(&o, kLps, kBytes), 0) << ccl_error();
    for (int i = 0; i < kLps; ++i) {
      states_[i].assign(kBytes, 0);
      ASSERT_EQ(ccl_register(i, states_[i].data(), kBytes), 0);
    }
  }
  void TearDown() override { ccl_finalize(); }
  void write(int lp, uint8_t value) { std::memset(states_[lp].data(), value, kBytes); }
  bool all(int lp, uint8_t value) const {
    for (uint8_t b : states_[lp]) {
      if (b != value) return false;
    }
    return true;
  }

  std::vector<uint8_t> states_[kLps];
};

constexpr uint64_t kStill = 1;  // a byte a second: the device stands still

TEST_F(CclTest, CommittedCheckpointsComeBack) {
  for (ckpt_tw_copier copier : {CKPT_TW_DEVICE, CKPT_TW_DEVICE_THREAD, CKPT_TW_HELPER}) {
    open(0, copier);
    for (int step = 1; step <= 5; ++step) {
      for (int lp = 0; lp < kLps; ++lp) {
        EXPECT_NE(ckpt_cond_abort(lp, 0), CCL_ABORTED);
        write(lp, static_cast<uint8_t>(step * 10 + lp));
        ASSERT_EQ(non_block_ckpt(lp, step), 0) << ccl_error();
      }
    }
    for (int lp = 0; lp < kLps; ++lp) {
      EXPECT_EQ(ckpt_cond_abort(lp, 0), CCL_COMMITTED);
      write(lp, 99);
      EXPECT_EQ(state_restore(lp, 3.5), 3);
      EXPECT_TRUE(all(lp, static_cast<uint8_t>(30 + lp)));
      EXPECT_EQ(fossil_collection(lp, 2.5), 2);
      EXPECT_EQ(state_restore(lp, 2.9), 2);
      EXPECT_TRUE(all(lp, static_cast<uint8_t>(20 + lp)));
      EXPECT_TRUE(std::isnan(state_restore(lp, 1)));
      EXPECT_NE(std::string(ccl_error()).find("no checkpoint at or before"), std::string::npos);
    }
  }
}

TEST_F(CclTest, ADeviceThatStandsStill) {
  open(kStill);
  write(0, 1);
  ASSERT_EQ(non_block_ckpt(0, 1), 0);
  EXPECT_EQ(ckpt_cond_abort(0, 0), CCL_COMMITTED);  // by the processor
  write(0, 2);
  ASSERT_EQ(non_block_ckpt(0, 2), 0);
  EXPECT_EQ(ckpt_cond_abort(0, 0.1f), CCL_ABORTED);
  EXPECT_EQ(ckpt_cond_abort(0, 0.1f), CCL_NOTHING);
  write(0, 3);
  EXPECT_EQ(state_restore(0, 5), 1);
  EXPECT_TRUE(all(0, 1));
}

TEST_F(CclTest, MultiprogrammedLeavesTheOthersAlone) {
  open(kStill);
  write(0, 1);
  write(1, 1);
  ASSERT_EQ(non_block_ckpt(0, 1), 0);
  ASSERT_EQ(non_block_ckpt(1, 1), 0);  // a second one at the same time
  EXPECT_EQ(ckpt_cond_abort(0, 1), CCL_ABORTED);
  EXPECT_EQ(ckpt_cond_abort(1, 0), CCL_COMMITTED);
  write(1, 2);
  EXPECT_EQ(state_restore(1, 1), 1);
  EXPECT_TRUE(all(1, 1));
}

TEST_F(CclTest, MonoprogrammedSettlesTheLast) {
  open(kStill, CKPT_TW_DEVICE, 1);
  EXPECT_EQ(ckpt_cond_abort(0, 1), CCL_NOTHING);  // from now on threshold 1
  ASSERT_EQ(non_block_ckpt(0, 1), 0);
  ASSERT_EQ(non_block_ckpt(1, 1), 0);
  EXPECT_EQ(ckpt_cond_abort(0, 0), CCL_ABORTED);  // the second request has given it up
  EXPECT_EQ(ckpt_cond_abort(1, 0), CCL_COMMITTED);
}

// Of many copies under way, each is settled alone, in any order, while the device works on them at its own
// pace.
TEST_F(CclTest, AnyOrder) {
  for (ckpt_tw_copier copier : {CKPT_TW_DEVICE, CKPT_TW_DEVICE_THREAD, CKPT_TW_HELPER}) {
    open(copier == CKPT_TW_HELPER ? 0 : 200'000'000, copier);
    uint8_t saved[kLps] = {};
    double saved_at[kLps] = {};
    for (int round = 1; round <= 300; ++round) {
      for (int lp = 0; lp < kLps; ++lp) {
        write(lp, static_cast<uint8_t>(round));
        ASSERT_EQ(non_block_ckpt(lp, round), 0);
      }
      for (int i = 0; i < kLps; ++i) {
        const int lp = (round + i * 3) % kLps;
        if (ckpt_cond_abort(lp, static_cast<float>(round % 3) / 2) == CCL_COMMITTED) {
          saved[lp] = static_cast<uint8_t>(round);
          saved_at[lp] = round;
        }
      }
      const int lp = round % kLps;
      if (saved_at[lp] > 0) {
        write(lp, 255);
        EXPECT_EQ(state_restore(lp, round), saved_at[lp]);
        EXPECT_TRUE(all(lp, saved[lp])) << round;
        EXPECT_EQ(fossil_collection(lp, round), 1);
      }
    }
  }
}

TEST_F(CclTest, Refusals) {
  EXPECT_EQ(non_block_ckpt(0, 1), CKPT_TW_USAGE);
  EXPECT_NE(std::string(ccl_error()).find("ccl_init"), std::string::npos);
  open(0);
  EXPECT_EQ(ckpt_cond_abort(0, 1.5f), -1);
  EXPECT_NE(std::string(ccl_error()).find("0 to 1"), std::string::npos);
  EXPECT_EQ(ckpt_cond_abort(kLps, 0), -1);
  EXPECT_EQ(ccl_register(0, states_[0].data(), kBytes + 1), CKPT_TW_USAGE);
  ASSERT_EQ(non_block_ckpt(0, 5), 0);
  EXPECT_EQ(ckpt_cond_abort(0, 0), CCL_COMMITTED);
  EXPECT_EQ(non_block_ckpt(0, 4), CKPT_TW_MODEL);
}

}  // namespace
}  // namespace timewarp_test
