#include "cli/plan/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "cli/text/failure.h"
#include "cli/text/human.h"

namespace ckpt::cli {

namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 80, kRight = 180, kTop = 30, kBottom = 60;
// Of ratios that are drawn. One of a recovery that takes many times the time between failures is infinite.
constexpr double kLeastRatio = 1e-9, kMostRatio = 10;
constexpr const char* kColours[] = {"#1b6ca8", "#c8553d", "#3a7d44", "#8d6a9f",
                                    "#b8860b", "#444444", "#20a4a4"};

// (2) and (3) with any interval in place of the best.
double ratio_at(const PlanInput& in, double interval) {
  const double lambda = 1 / in.mtbf;
  return in.mtbf * std::exp(lambda * (in.latency - in.overhead + in.recovery + in.repair)) *
             std::expm1(lambda * (interval + in.overhead)) / interval -
         1;
}

struct Axis {
  double low, high, from, to;  // logarithms, and where they are drawn
  double at(double value) const { return from + (std::log10(value) - low) / (high - low) * (to - from); }
};

std::string words(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string draw_plan(const std::vector<Curve>& curves) {
  double shortest = INFINITY, longest = 0, least = INFINITY, most = 0;
  for (const Curve& c : curves) {
    shortest = std::min(shortest, c.best.interval / 30);
    longest = std::max(longest, c.best.interval * 30);
    least = std::min(least, std::clamp(c.best.ratio, kLeastRatio, kMostRatio));
  }
  for (const Curve& c : curves) {
    for (double t : {shortest, longest}) most = std::max(most, std::min(ratio_at(c.input, t), kMostRatio));
  }
  const Axis x{std::log10(shortest), std::log10(longest), kLeft, kWidth - kRight};
  const Axis y{std::floor(std::log10(least)), std::ceil(std::log10(std::max(most, least * 10))),
               kHeight - kBottom, kTop};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  auto text = [&](double at_x, double at_y, const char* anchor, const std::string& what) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at_x, at_y, anchor,
                       words(what));
  };
  auto line = [&](double x1, double y1, double x2, double y2) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n",
                       x1, y1, x2, y2);
  };
  const int last_time = static_cast<int>(std::floor(x.high)), last_ratio = static_cast<int>(y.high);
  for (int d = static_cast<int>(std::ceil(x.low)); d <= last_time; ++d) {
    const double at = x.at(std::pow(10, d));
    line(at, kTop, at, kHeight - kBottom);
    text(at, kHeight - kBottom + 18, "middle", human_duration(static_cast<int64_t>(std::pow(10, d) * 1e9)));
  }
  for (int d = static_cast<int>(y.low); d <= last_ratio; ++d) {
    const double at = y.at(std::pow(10, d));
    line(kLeft, at, kWidth - kRight, at);
    text(kLeft - 8, at + 4, "end", fmt::format("{:g} %", 100 * std::pow(10, d)));
  }
  text((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", "time between checkpoints");
  text(kLeft, kTop - 12, "start", "time lost to checkpoints, recovery and failures");
  for (size_t i = 0; i < curves.size(); ++i) {
    const Curve& c = curves[i];
    const char* colour = kColours[i % std::size(kColours)];
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"", colour);
    constexpr int kPoints = 200;
    for (int p = 0; p <= kPoints; ++p) {
      const double interval = std::pow(10, x.low + (x.high - x.low) * p / kPoints);
      const double ratio = ratio_at(c.input, interval);
      if (!(ratio > 0) || std::log10(ratio) > y.high) continue;
      svg += fmt::format("{:.1f},{:.1f} ", x.at(interval), y.at(ratio));
    }
    svg += "\"/>\n";
    if (const double ratio = std::max(c.best.ratio, kLeastRatio); std::log10(ratio) <= y.high) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x.at(c.best.interval),
                         y.at(ratio), colour);
    }
    const double at = kTop + 10 + 20 * static_cast<double>(i);
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                       kWidth - kRight + 14, at - 10, colour);
    text(kWidth - kRight + 32, at, "start",
         fmt::format("{}, best {}", c.name, human_duration(static_cast<int64_t>(c.best.interval * 1e9))));
  }
  return svg + "</svg>\n";
}

Result<void> write_plot(const std::string& path, const std::vector<Curve>& curves) {
  std::ofstream file(path);
  file << draw_plan(curves);
  file.close();
  if (file) return {};
  return failure(ExitCode::kIo, path, "cannot be written", "name a file in a directory that is yours");
}

}  // namespace ckpt::cli
