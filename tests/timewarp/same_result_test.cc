// Every engine, number of threads, way of going back, queue and window gives the result of the sequential
// engine, to the last bit.
#include <gtest/gtest.h>

#include <string>

#include "bench/timewarp/phold_model.h"
#include "tests/timewarp/chaos_model.h"

namespace timewarp_test {
namespace {

struct Case {
  const char* name;
  Chaos chaos;
  double end;
};

Case case_of(const char* name, double end, void (*set)(Chaos&)) {
  Case c{name, {}, end};
  set(c.chaos);
  return c;
}

const Case kCases[] = {
    case_of("continuous", 12,
            [](Chaos& c) {
              c.steps = 0;
              c.delay = 0.5;
              c.lps = 24;
            }),
    case_of("ties", 60, [](Chaos& c) { c.steps = 3; }),
    case_of("no look-ahead", 40,
            [](Chaos& c) {
              c.zero = true;
              c.events = 1;
            }),
    case_of("messages to all", 30,
            [](Chaos& c) {
              c.burst = 8;
              c.steps = 6;
            }),
    case_of("stragglers", 30,
            [](Chaos& c) {
              c.steps = 0;
              c.delay = 0.3;
              c.jump = 25;
              c.events = 3;
            }),
    case_of("states that grow", 40,
            [](Chaos& c) {
              c.grow = true;
              c.zero = true;
              c.events = 1;
            }),
};

std::string what(const ckpt_tw_options& o) {
  return "threads " + std::to_string(o.threads) + ", way " + std::to_string(o.saving.way) + ", every " +
         std::to_string(o.saving.every) + ", seed " + std::to_string(o.seed) + ", queue " +
         std::to_string(o.queue) + ", window " + std::to_string(o.window) + ", copier " +
         std::to_string(o.copier);
}

ckpt_tw_options options_for(double end, uint64_t seed) {
  ckpt_tw_options o;
  ckpt_tw_defaults(&o);
  o.end = end;
  o.seed = seed;
  o.digest = 1;
  return o;
}

ckpt_tw_result oracle(const ckpt_tw_model& model, ckpt_tw_options o) {
  o.engine = CKPT_TW_SEQUENTIAL;
  ckpt_tw_result result;
  EXPECT_EQ(ckpt_tw_run(&model, &o, &result), CKPT_TW_OK) << result.error;
  EXPECT_GT(result.committed, 200u);
  return result;
}

uint64_t undone = 0, repeated = 0;

void expect_same(const ckpt_tw_model& model, const ckpt_tw_options& o, const ckpt_tw_result& expected) {
  ckpt_tw_result result;
  ASSERT_EQ(ckpt_tw_run(&model, &o, &result), CKPT_TW_OK) << result.error << " (" << what(o) << ")";
  EXPECT_EQ(result.committed, expected.committed) << what(o);
  EXPECT_EQ(result.state_digest, expected.state_digest) << what(o);
  EXPECT_EQ(result.events_digest, expected.events_digest) << what(o);
  EXPECT_EQ(result.executed - result.rolled_back, result.committed) << what(o);
  undone += result.rolled_back;
  repeated += result.repeated;
}

struct Variant {
  ckpt_tw_saving saving;
  ckpt_tw_copier copier;
  int mono;
};
const Variant kVariants[] = {
    {{CKPT_TW_COPY, 1, 0}, CKPT_TW_DEVICE, 0},       {{CKPT_TW_COPY, 3, 0}, CKPT_TW_DEVICE, 0},
    {{CKPT_TW_COPY, 0, 0}, CKPT_TW_DEVICE, 0},       {{CKPT_TW_INCREMENTAL, 1, 0}, CKPT_TW_DEVICE, 0},
    {{CKPT_TW_REVERSE, 1, 0}, CKPT_TW_DEVICE, 0},    {{CKPT_TW_REVERSE, 1, 1}, CKPT_TW_DEVICE, 0},
    {{CKPT_TW_CCL, 1, 0}, CKPT_TW_DEVICE, 0},        {{CKPT_TW_CCL, 1, 0}, CKPT_TW_DEVICE, 1},
    {{CKPT_TW_CCL, 1, 0}, CKPT_TW_DEVICE_THREAD, 0}, {{CKPT_TW_CCL, 1, 0}, CKPT_TW_HELPER, 0},
};

class SameResult : public testing::TestWithParam<Case> {};

TEST_P(SameResult, ThreadsAndWays) {
  const Case& c = GetParam();
  const ckpt_tw_model model = chaos_model(c.chaos);
  for (uint64_t seed : {1, 2, 3}) {
    ckpt_tw_options o = options_for(c.end, seed);
    const ckpt_tw_result expected = oracle(model, o);
    for (uint32_t threads : {1, 2, 3, 4}) {
      for (const Variant& variant : kVariants) {
        o.threads = threads;
        o.saving = variant.saving;
        o.copier = variant.copier;
        o.monoprogrammed = variant.mono;
        o.device_bytes_per_second = seed == 1 ? 50'000'000 : 2'000'000;
        o.batch = seed == 1 ? 1 : 7;  // threads that look at each other in unlike rhythms
        // 1: a thread has at most eight events that are not final.
        o.gvt_events = seed == 1 ? 16 : seed == 2 ? 200 : 1;
        expect_same(model, o, expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SameResult, QueuesAndWindows) {
  const Case& c = GetParam();
  const ckpt_tw_model model = chaos_model(c.chaos);
  ckpt_tw_options o = options_for(c.end, 3);
  const ckpt_tw_result expected = oracle(model, o);
  for (ckpt_tw_queue queue : {CKPT_TW_LADDER, CKPT_TW_HEAP, CKPT_TW_CALENDAR, CKPT_TW_SPLAY}) {
    o.queue = queue;
    o.window = 0;
    EXPECT_EQ(oracle(model, o).events_digest, expected.events_digest) << what(o);
    for (double window : {0.0, 1e-300, 0.7, 1e30}) {
      for (uint32_t threads : {1, 3}) {
        o.window = window;
        o.threads = threads;
        o.saving.every = window == 0.7 ? 5 : 1;
        expect_same(model, o, expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SameResult, EachLpInAnotherWayAndElsewhere) {
  const Case& c = GetParam();
  Chaos mixed = c.chaos;
  mixed.mix = true;
  ckpt_tw_model model = chaos_model(mixed);
  model.place_of = [](uint32_t lp, uint32_t threads, void*) { return lp * 7 % threads; };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ckpt_tw_options o = options_for(c.end, seed);
    const ckpt_tw_result expected = oracle(model, o);
    o.threads = 4;
    o.colocate = seed & 1;
    o.page_kib = seed < 3 ? 4 : 2048;
    o.batch = static_cast<uint32_t>(seed);
    expect_same(model, o, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Chaos, SameResult, testing::ValuesIn(kCases), [](const auto& which) {
  std::string name = which.param.name;
  for (char& ch : name) ch = ch == ' ' || ch == '-' ? '_' : ch;
  return name;
});

TEST(SameResultShrinking, StatesThatGrowAndShrink) {
  Chaos chaos;
  chaos.grow = chaos.shrink = true;
  const ckpt_tw_model model = chaos_model(chaos);
  ckpt_tw_options o = options_for(60, 5);
  const ckpt_tw_result expected = oracle(model, o);
  for (const Variant& variant : kVariants) {
    if (variant.saving.way == CKPT_TW_REVERSE) continue;
    o.threads = 3;
    o.batch = 2;
    o.saving = variant.saving;
    o.copier = variant.copier;
    expect_same(model, o, expected);
  }
}

TEST(SameResultPhold, AllWays) {
  timewarp_bench::PholdParameters p;
  p.lps = 64;
  p.events = 4;
  p.state_bytes = 512;
  p.touch = 40;
  p.lookahead = 0;
  const ckpt_tw_model model = phold_model(p);
  ckpt_tw_options o = options_for(30, 1);
  const ckpt_tw_result expected = oracle(model, o);
  for (const Variant& variant : kVariants) {
    o.threads = 2;
    o.saving = variant.saving;
    o.copier = variant.copier;
    o.monoprogrammed = variant.mono;
    o.device_bytes_per_second = 100'000'000;
    expect_same(model, o, expected);
  }
}

// The sweeps above would prove little if nothing was ever undone.
TEST(SameResultZ, EventsWereUndoneAndRepeated) {
  if (testing::GTEST_FLAG(filter) != "*") GTEST_SKIP() << "after all others only";
  EXPECT_GT(undone, 10'000u);
  EXPECT_GT(repeated, 1'000u);
}

}  // namespace
}  // namespace timewarp_test
