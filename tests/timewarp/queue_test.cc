// All queues give events in order, whatever comes in.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include <random>
#include <set>

#include "timewarp/engine/queue/event_queue.h"

namespace ckpt::timewarp {
namespace {

struct ByKey {
  bool operator()(const Event* a, const Event* b) const { return *a < *b; }
};

class Queues : public testing::TestWithParam<int> {};

TEST_P(Queues, InOrder) {
  std::mt19937 random(7);
  for (int shape = 0; shape < 6; ++shape) {
    EventQueue queue(static_cast<ckpt_tw_queue>(GetParam()), true);
    std::multiset<Event*, ByKey> expected;
    std::vector<std::unique_ptr<Event>> events;
    double now = 0;
    uint64_t count = 0;
    const auto push = [&] {
      const double unit = static_cast<double>(random() % 100000) / 100000;
      double time = now;
      if (shape == 0) time += unit;
      if (shape == 1) time += static_cast<double>(random() % 3);                           // ties
      if (shape == 2) time += random() % 50 == 0 ? unit * 1e6 : unit * 1e-3;               // far and near
      if (shape == 3) time = std::max(0.0, now + unit - (random() % 4 == 0 ? 2.0 : 0.0));  // into the past
      if (shape == 4) time = 5;                                                            // all the same
      if (shape == 5) time += -std::log(1 - unit) * (random() % 2 == 0 ? 1e-9 : 1e9);
      events.push_back(std::make_unique<Event>());
      *events.back() = {
          time, count++, static_cast<uint32_t>(random() % 5), 0, nullptr, 0, 0, EventStatus::kWaiting, 0};
      queue.push({time, events.back().get()});
      expected.insert(events.back().get());
    };
    for (int i = 0; i < 3000; ++i) push();
    for (int i = 0; i < 20000; ++i) {
      const bool grow = i / 5000 % 2 == 0;
      if (expected.empty() || random() % 100 < (grow ? 53u : 47u)) {
        push();
        continue;
      }
      const Entry first = queue.min();
      ASSERT_EQ(first.event, *expected.begin()) << "shape " << shape << ", step " << i;
      now = first.time;
      queue.pop();
      expected.erase(expected.begin());
      ASSERT_EQ(queue.size(), expected.size());
    }
    while (!expected.empty()) {
      ASSERT_EQ(queue.min().event, *expected.begin());
      queue.pop();
      expected.erase(expected.begin());
    }
    EXPECT_EQ(queue.min().event, nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Queues,
                         testing::Values(CKPT_TW_LADDER, CKPT_TW_HEAP, CKPT_TW_CALENDAR, CKPT_TW_SPLAY));

}  // namespace
}  // namespace ckpt::timewarp
