// A copier that keeps no order: of the copies that were started any one is done next, from its end to its
// beginning. Some stand still for ever, and at times the copier takes no more. The engine must not notice.
// This copier stands in the place of the helper thread: this program defines make_helper_copier() itself, so
// the library's is not linked.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/timewarp/chaos_model.h"
#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

namespace {

// Of all threads' copiers; each test resets them.
std::atomic<uint64_t> overtaken{0}, complete{0}, aborted{0}, refused{0};

class UnrulyCopier final : public BackgroundCopier {
 public:
  [[nodiscard]] bool start(NonBlockingCopy& copy) override {
    if (random() % 16 == 0) {
      refused.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    copy.ticket = ++last_;
    queued_.push_back({copy.ticket, static_cast<const std::byte*>(copy.from),
                       static_cast<std::byte*>(copy.to), copy.bytes, copy.bytes, random() % 4 == 0});
    poll();
    return true;
  }

  Settled settle(NonBlockingCopy& copy, uint32_t percent) override {
    poll();
    const auto found = std::find_if(queued_.begin(), queued_.end(),
                                    [&](const Queued& q) { return q.ticket == copy.ticket; });
    EXPECT_NE(found, queued_.end());
    const Queued q = *found;
    queued_.erase(found);
    if (percent > 100 || uint64_t{q.bytes - q.left} * 100 < uint64_t{percent} * q.bytes) {
      aborted.fetch_add(1, std::memory_order_relaxed);
      return Settled::kAborted;
    }
    if (q.left != 0) {
      std::memcpy(q.to, q.from, q.left);
      return Settled::kFinished;
    }
    complete.fetch_add(1, std::memory_order_relaxed);
    return Settled::kComplete;
  }

  // Some bytes of some of them.
  void poll() override {
    for (uint64_t n = random() % 4; n > 0 && !queued_.empty(); --n) {
      const size_t which = random() % queued_.size();
      Queued& q = queued_[which];
      if (q.stands || q.left == 0) continue;
      const uint32_t part = std::min<uint32_t>(q.left, 1 + random() % q.bytes);
      q.left -= part;
      std::memcpy(q.to + q.left, q.from + q.left, part);
      if (q.left == 0 && which != 0) overtaken.fetch_add(1, std::memory_order_relaxed);
    }
  }

 private:
  struct Queued {
    uint64_t ticket;
    const std::byte* from;
    std::byte* to;
    uint32_t bytes, left;  // `left` bytes at the beginning are not there yet
    bool stands;
  };
  uint32_t random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  uint64_t state_ = 1, last_ = 0;
  std::vector<Queued> queued_;
};

}  // namespace

std::unique_ptr<BackgroundCopier> make_helper_copier(uint32_t) { return std::make_unique<UnrulyCopier>(); }

}  // namespace ckpt::timewarp

namespace timewarp_test {
namespace {

using namespace ckpt::timewarp;

TEST(OutOfTurn, TheResultIsThatOfTheSequentialEngine) {
  Chaos chaos;
  chaos.steps = 0;
  chaos.delay = 0.3;
  chaos.jump = 25;
  chaos.events = 3;
  const ckpt_tw_model model = chaos_model(chaos);
  uint64_t undone = 0;
  for (uint64_t seed : {1, 2, 3, 4}) {
    ckpt_tw_options o;
    ckpt_tw_defaults(&o);
    o.end = 30;
    o.seed = seed;
    o.digest = 1;
    o.engine = CKPT_TW_SEQUENTIAL;
    ckpt_tw_result expected;
    ASSERT_EQ(ckpt_tw_run(&model, &o, &expected), CKPT_TW_OK) << expected.error;
    o.engine = CKPT_TW_OPTIMISTIC;
    o.saving = {CKPT_TW_CCL, 1, 0};
    o.copier = CKPT_TW_HELPER;
    for (uint32_t threads : {1, 2, 3}) {
      for (double threshold : {0.0, 0.5, 1.0}) {
        for (int mono : {0, 1}) {
          o.threads = threads;
          o.threshold = threshold;
          o.monoprogrammed = mono;
          ckpt_tw_result result;
          ASSERT_EQ(ckpt_tw_run(&model, &o, &result), CKPT_TW_OK) << result.error;
          EXPECT_EQ(result.committed, expected.committed);
          EXPECT_EQ(result.state_digest, expected.state_digest);
          EXPECT_EQ(result.events_digest, expected.events_digest);
          undone += result.rolled_back;
        }
      }
    }
  }
  EXPECT_GT(undone, 0u);
  EXPECT_GT(overtaken.load(), 0u);
  EXPECT_GT(complete.load(), 0u);
  EXPECT_GT(aborted.load(), 0u);
  EXPECT_GT(refused.load(), 0u);
}

}  // namespace
}  // namespace timewarp_test
