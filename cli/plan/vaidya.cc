#include "cli/plan/vaidya.h"

#include <cmath>

namespace ckpt::cli {

namespace {

// (1): e^(lambda (T + O)) (1 - lambda T) = 1, T not 0. With x = lambda T: f(x) = x + lambda O + log(1 - x),
// which is positive at 0, falls, and goes to minus infinity at 1: one root, by halving. log1p keeps what a
// small x has.
double best_interval(double lambda, double overhead) {
  double low = 0, high = 1;
  for (int i = 0; i < 200; ++i) {
    const double x = low + (high - low) / 2;
    if (x + lambda * overhead + std::log1p(-x) > 0)
      low = x;
    else
      high = x;
  }
  return low / lambda;
}

}  // namespace

PlanResult make_plan(const PlanInput& in) {
  const double lambda = 1 / in.mtbf;
  PlanResult out;
  out.interval = best_interval(lambda, in.overhead);
  out.expected = in.mtbf * std::exp(lambda * (in.latency - in.overhead + in.recovery + in.repair)) *
                 std::expm1(lambda * (out.interval + in.overhead));
  out.ratio = out.expected / out.interval - 1;
  if (in.base > 0) {
    out.with = in.base * (out.ratio + 1);
    out.without = in.mtbf * std::exp(lambda * in.repair) * std::expm1(lambda * in.base);
  }
  return out;
}

}  // namespace ckpt::cli
