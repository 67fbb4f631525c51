// The paper's table 4, and what must hold of any plan.
#include "cli/plan/vaidya.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/settings/best_interval.h"

namespace ckpt::cli {
namespace {

constexpr double kDay = 86400;

// lambda of table 4: 16 hosts for the disk, 17 without.
constexpr double kDisk = 29.29 * kDay / 16, kDiskless = 29.29 * kDay / 17;

struct Line {
  double mtbf, base, interval, expected, ratio, with, without;
};

// O follows from the interval by (1), L - O + R from the expected time by (2): what is left is checked.
TEST(Plan, AsInThePaper) {
  for (const Line& line :
       {Line{kDisk, 5722, 2727, 2789, 0.0229, 5853, 5826},
        Line{kDiskless, 5722, 1267, 1278, 0.0087, 5772, 5826},
        Line{kDisk, 6602, 2215, 2302, 0.0393, 6862, 6741}, Line{kDisk, 5610, 3778, 4024, 0.0652, 5976, 5710},
        Line{kDisk, 6351, 5017, 5539, 0.1040, 7012, 6480},
        Line{kDiskless, 5874, 3357, 3444, 0.0260, 0, 5984}}) {
    const double lambda = 1 / line.mtbf;
    PlanInput in;
    in.mtbf = line.mtbf;
    in.base = line.base;
    in.overhead = -std::log1p(-lambda * line.interval) / lambda - line.interval;
    const double rest =
        std::log(line.expected * lambda / std::expm1(lambda * (line.interval + in.overhead))) / lambda;
    in.latency = rest + in.overhead;
    const PlanResult out = make_plan(in);
    EXPECT_NEAR(out.interval, line.interval, 1e-3);
    EXPECT_NEAR(out.expected, line.expected, 1e-3);
    EXPECT_NEAR(out.ratio, line.ratio, 0.0005);
    // That of PCG (5991) does not follow from its r: it is (5) with the rate of 17 hosts.
    if (line.with != 0) {
      EXPECT_NEAR(out.with, line.with, 0.0005 * line.base + 1);
    }
    if (line.mtbf == kDisk) {
      EXPECT_NEAR(out.without, line.without, 5);
    }
  }
}

TEST(Plan, TheBestIntervalIsTheBest) {
  for (double overhead : {1e-4, 0.005, 1.0, 60.0, 3600.0}) {
    PlanInput in;
    in.mtbf = kDay;
    in.overhead = in.latency = overhead;
    in.recovery = 1;
    const PlanResult best = make_plan(in);
    auto ratio = [&](double t) {
      return in.mtbf * std::exp(in.recovery / in.mtbf) * std::expm1((t + overhead) / in.mtbf) / t - 1;
    };
    EXPECT_NEAR(ratio(best.interval), best.ratio, 1e-9);
    for (double factor : {0.5, 0.9, 1.1, 2.0})
      EXPECT_GT(ratio(best.interval * factor), best.ratio) << overhead;
    // Young's formula, where a checkpoint is short.
    if (overhead < 1) {
      EXPECT_NEAR(best.interval, std::sqrt(2 * overhead * kDay), 0.01 * best.interval);
    }
  }
}

TEST(Plan, RepairCosts) {
  PlanInput in;
  in.mtbf = kDay;
  in.overhead = in.latency = in.recovery = 1;
  in.base = 10 * kDay;
  const PlanResult at_once = make_plan(in);
  in.repair = 3600;
  const PlanResult later = make_plan(in);
  EXPECT_EQ(later.interval, at_once.interval);
  EXPECT_GT(later.ratio, at_once.ratio);
  EXPECT_NEAR(later.without / at_once.without, std::exp(3600 / kDay), 1e-9);
}

// The program's own logarithm is that of the C library.
TEST(Plan, LogarithmOfRest) {
  double x = 1e-12;
  while (x <= 1 - 1e-12) {
    EXPECT_NEAR(log_of_rest(x) / std::log1p(-x), 1, 1e-14) << x;
    x = x < 0.1 ? x * 3 : x + (1 - x) / 7;
  }
}

TEST(Plan, TheIntervalInForceFollows) {
  AutoInterval in_force;
  EXPECT_EQ(in_force.ns(), AutoInterval::kFirstNs);
  constexpr int64_t kMs = 1'000'000, kHour = 3600 * 1000 * kMs;
  const auto equation = [](int64_t overhead) {
    return static_cast<int64_t>(best_interval(3600, static_cast<double>(overhead) / 1e9) * 1e3);
  };
  // One overhead that is out of the ordinary changes nothing; many such overheads do.
  in_force.learn(5 * kMs, 20 * kMs, kHour);
  EXPECT_EQ(in_force.ns() / kMs, equation(5 * kMs));
  in_force.learn(5 * kMs, 20 * kMs, kHour);
  in_force.learn(900 * kMs, 20 * kMs, kHour);
  EXPECT_EQ(in_force.overhead_ns(), 5 * kMs);
  for (int i = 0; i < 4; ++i) in_force.learn(80 * kMs, 20 * kMs, kHour);
  EXPECT_EQ(in_force.overhead_ns(), 80 * kMs);
  EXPECT_EQ(in_force.ns() / kMs, equation(80 * kMs));
  // None begins before the one before it counts.
  in_force.learn(80 * kMs, 2 * kHour, kHour);
  EXPECT_EQ(in_force.ns(), 2 * kHour);
  for (int i = 0; i < 7; ++i) in_force.learn(0, 0, kMs);
  EXPECT_EQ(in_force.ns(), kMs);
}

}  // namespace
}  // namespace ckpt::cli
