// The overhead ratio over the interval between checkpoints, a curve for each scheme, as SVG.
//
// Owner: cli. Ordinary code, any thread. Callers: `ckpt plan`.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/plan/vaidya.h"

namespace ckpt::cli {

struct Curve {
  std::string name;
  PlanInput input;
  PlanResult best;
};

std::string draw_plan(const std::vector<Curve>& curves);
// Errors: kIo.
Result<void> write_plot(const std::string& path, const std::vector<Curve>& curves);

}  // namespace ckpt::cli
