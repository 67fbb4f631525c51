// What a model or its user does wrong ends the run with one line that names the LP, the event and the remedy;
// memory limits are kept without a deadlock.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <ostream>
#include <string>

#include "bench/timewarp/phold_model.h"
#include "tests/timewarp/chaos_model.h"

namespace timewarp_test {
namespace {

ckpt_tw_options options_for(uint32_t threads) {
  ckpt_tw_options o;
  ckpt_tw_defaults(&o);
  o.end = 200;
  o.threads = threads;
  if (threads == 0) o.engine = CKPT_TW_SEQUENTIAL;
  o.batch = 3;
  return o;
}

std::string error_of(const Chaos& chaos, ckpt_tw_options o, int code) {
  const ckpt_tw_model model = chaos_model(chaos);
  ckpt_tw_result result;
  EXPECT_EQ(ckpt_tw_run(&model, &o, &result), code) << result.error;
  EXPECT_EQ(std::string(result.error).find('\n'), std::string::npos);
  return result.error;
}

struct Wrong {
  const char* name;
  Fault fault;
  const char* words;
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

class ModelFault : public testing::TestWithParam<Wrong> {};

// The same line from every engine: a handler that fails on a path that is later undone does not count.
TEST_P(ModelFault, NamedTheSameByAllEngines) {
  Chaos chaos;
  chaos.steps = 0;
  chaos.jump = 8;
  chaos.fault = GetParam().fault;
  const std::string sequential = error_of(chaos, options_for(0), CKPT_TW_MODEL);
  EXPECT_EQ(sequential.rfind("LP 3, event at time ", 0), 0u) << sequential;
  EXPECT_NE(sequential.find(GetParam().words), std::string::npos) << sequential;
  for (uint32_t threads : {1, 2, 3}) {
    for (ckpt_tw_way way : {CKPT_TW_COPY, CKPT_TW_REVERSE, CKPT_TW_INCREMENTAL, CKPT_TW_CCL}) {
      ckpt_tw_options o = options_for(threads);
      o.saving.way = way;
      EXPECT_EQ(error_of(chaos, o, CKPT_TW_MODEL), sequential) << threads << " threads, way " << way;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Refusals, ModelFault,
                         testing::Values(Wrong{"IntoThePast", kIntoThePast, "into the past"},
                                         Wrong{"NoSuchLp", kNoSuchLp, "the LPs are 0 to 15"},
                                         Wrong{"MessageTooLarge", kMessageTooLarge, "raise message_bytes"},
                                         Wrong{"StateTooLarge", kStateTooLarge, "raise state_bytes"},
                                         Wrong{"OwnError", kOwnError, "the model's own words"},
                                         Wrong{"Forever", kForever, "without delay"}),
                         [](const auto& which) { return which.param.name; });

// Threads set up their LPs at the same time; which of them is wrong is said as a sequential run says it.
TEST(Refusals, InInit) {
  ckpt_tw_model model{};
  model.lps = 64;
  model.state_bytes = 8;
  model.message_bytes = 1;
  model.init = [](ckpt_tw_lp* lp, void*) { ckpt_tw_send(lp, lp->id < 5 ? lp->id : 64, 1, "", 1); };
  model.event = [](ckpt_tw_lp*, void*, const void*, size_t) {};
  for (uint32_t threads : {0, 1, 2, 4}) {
    for (int turn = 0; turn < 20; ++turn) {
      const ckpt_tw_options o = options_for(threads);
      ckpt_tw_result result;
      EXPECT_EQ(ckpt_tw_run(&model, &o, &result), CKPT_TW_MODEL);
      EXPECT_STREQ(result.error, "LP 5, in init: it sends to LP 64, but the LPs are 0 to 63");
    }
  }
}

TEST(Refusals, AnInverseThatDoesNotInvert) {
  Chaos chaos;
  chaos.fault = kBadInverse;
  for (uint32_t threads : {1, 3}) {
    ckpt_tw_options o = options_for(threads);
    o.saving = {CKPT_TW_REVERSE, 1, 1};
    const std::string error = error_of(chaos, o, CKPT_TW_MODEL);
    EXPECT_EQ(error.rfind("LP 3, event at time ", 0), 0u) << error;
    EXPECT_NE(error.find("its inverse does not invert: after forward and back, byte 0 of the state is"),
              std::string::npos)
        << error;
  }
}

TEST(Refusals, AHandlerThatIsNotRepeatable) {
  static uint64_t calls;
  calls = 0;
  ckpt_tw_model model{};
  model.lps = 2;
  model.state_bytes = 8;
  model.message_bytes = 1;
  model.init = [](ckpt_tw_lp* lp, void*) { ckpt_tw_send(lp, lp->id, 1, "", 1); };
  model.event = [](ckpt_tw_lp* lp, void* state, const void*, size_t) {
    *static_cast<uint64_t*>(state) += ++calls;
    *ckpt_tw_bits(lp) = calls;
    ckpt_tw_send(lp, lp->id, 1, "", 1);
  };
  model.reverse = [](ckpt_tw_lp* lp, void* state, const void*, size_t) {
    *static_cast<uint64_t*>(state) -= *ckpt_tw_bits(lp);
  };
  ckpt_tw_options o = options_for(1);
  o.saving = {CKPT_TW_REVERSE, 1, 1};
  ckpt_tw_result result;
  EXPECT_EQ(ckpt_tw_run(&model, &o, &result), CKPT_TW_MODEL);
  EXPECT_NE(std::string(result.error).find("executed twice"), std::string::npos) << result.error;
}

TEST(Refusals, Options) {
  const Chaos chaos;
  const auto refused = [&](void (*spoil)(ckpt_tw_options&), const char* words) {
    ckpt_tw_options o = options_for(2);
    spoil(o);
    const std::string error = error_of(chaos, o, CKPT_TW_USAGE);
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  refused([](ckpt_tw_options& o) { o.threshold = 1.5; }, "0 to 1");
  refused([](ckpt_tw_options& o) { o.threshold = NAN; }, "0 to 1");
  refused([](ckpt_tw_options& o) { o.threads = 0; }, "1 to 256");
  refused([](ckpt_tw_options& o) { o.end = -1; }, "not after the beginning");
  refused([](ckpt_tw_options& o) { o.window = -1; }, "window");
  refused([](ckpt_tw_options& o) { o.page_kib = 64; }, "pages");

  Chaos shrinking;
  shrinking.grow = shrinking.shrink = true;
  ckpt_tw_options o = options_for(2);
  o.saving.way = CKPT_TW_REVERSE;
  EXPECT_NE(error_of(shrinking, o, CKPT_TW_USAGE).find("no inverse"), std::string::npos);
  shrinking.mix = true;
  EXPECT_NE(error_of(shrinking, o, CKPT_TW_USAGE).find("LP 3 is to go back by reverse"), std::string::npos);

  ckpt_tw_options dsa = options_for(1);
  dsa.saving.way = CKPT_TW_CCL;
  dsa.copier = CKPT_TW_DSA;
  if (access("/dev/dsa", F_OK) != 0) {
    EXPECT_NE(error_of(chaos, dsa, CKPT_TW_UNAVAILABLE).find("no Intel DSA"), std::string::npos);
  }
}

// Memory: what a sequential run needs, and little more, is enough; less is said.
TEST(Memory, LimitsAreKeptWithoutDeadlock) {
  timewarp_bench::PholdParameters p;
  p.lps = 256;
  p.events = 8;
  p.remote = 0.9;
  p.lookahead = 0;
  const ckpt_tw_model model = phold_model(p);
  ckpt_tw_options o = options_for(0);
  o.end = 6;
  o.page_kib = 4;
  ckpt_tw_result expected;
  ASSERT_EQ(ckpt_tw_run(&model, &o, &expected), 0);
  o.engine = CKPT_TW_OPTIMISTIC;
  o.window = 1e9;
  o.gvt_events = 1u << 20;  // only a lack of memory asks for GVT
  for (ckpt_tw_saving saving : {ckpt_tw_saving{CKPT_TW_COPY, 1, 0}, ckpt_tw_saving{CKPT_TW_COPY, 4, 0}}) {
    for (uint32_t threads : {1, 2, 3}) {
      o.threads = threads;
      o.saving = saving;
      o.memory_bytes = expected.peak_bytes * 3 / 2 + threads * 4096;
      if (saving.every > 1) o.memory_bytes *= 2;
      ckpt_tw_result result;
      ASSERT_EQ(ckpt_tw_run(&model, &o, &result), 0) << result.error;
      EXPECT_EQ(result.state_digest, expected.state_digest);
      EXPECT_GT(result.stalls, 0u);
    }
  }
  o.saving = {CKPT_TW_COPY, 1, 0};
  o.memory_bytes = expected.peak_bytes / 2;
  for (uint32_t threads : {0, 1, 2}) {
    o.engine = threads == 0 ? CKPT_TW_SEQUENTIAL : CKPT_TW_OPTIMISTIC;
    o.threads = threads;
    ckpt_tw_result result;
    EXPECT_EQ(ckpt_tw_run(&model, &o, &result), CKPT_TW_MEMORY) << threads;
    EXPECT_NE(std::string(result.error).find("raise the limit"), std::string::npos) << result.error;
  }
}

}  // namespace
}  // namespace timewarp_test
