#include "cli/plan/vaidya.h"

#include <cmath>

#include "base/settings/best_interval.h"

namespace ckpt::cli {

PlanResult make_plan(const PlanInput& in) {
  const double lambda = 1 / in.mtbf;
  PlanResult out;
  out.interval = best_interval(in.mtbf, in.overhead);
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
