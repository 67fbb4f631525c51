// How far ahead of the slowest thread another may execute: given, or adapted to the share of events undone.
//
// Owner:     a thread of the optimistic engine.
// Callers:   that thread only: ran() after each batch, judge() at each GVT.
// Never:     decides what is right, only what is worth while: any width gives the same result.
//
// It shrinks by the share undone, from the distance to GVT that the thread has used since it was judged last: the longest,
// because the last event executed may be a straggler just above GVT, and a width taken from that would be no window at all.
// It grows while little is undone, if it holds the thread back or is not far beyond what is used. Where it holds the thread
// back and nothing is undone it doubles: too small a width is not seen in the events, because each thread waits for the
// other's clock after a few.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace ckpt::timewarp {

class Window {
 public:
  // width: of simulated time; 0: adapted, none at first.
  explicit Window(double width)
      : adapted_(!(width > 0)), width_(width > 0 ? width : std::numeric_limits<double>::infinity()) {}

  double width() const { return width_; }
  // A batch of events ended `ahead` of GVT. held: at the window, not for want of events.
  void ran(double ahead, bool held) {
    ahead_ = std::max(ahead_, ahead);
    held_ |= held;
  }
  // Totals of the thread, so far.
  void judge(uint64_t executed, uint64_t rolled_back) {
    if (!adapted_ || executed - executed_ < kJudged) return;
    const double undone =
        static_cast<double>(rolled_back - rolled_back_) / static_cast<double>(executed - executed_);
    if (undone > kTooMuchUndone) {
      if (ahead_ > 0) width_ = std::min(width_, ahead_);
      width_ *= std::clamp(1 - undone, kSmallestStep, kLargestStep);
    } else if (undone < kLittleUndone && (held_ || width_ < kWidest * ahead_)) {
      width_ *= held_ && rolled_back == rolled_back_ ? kFastGrowth : kGrowth;
    }
    executed_ = executed;
    rolled_back_ = rolled_back;
    ahead_ = 0;
    held_ = false;
  }

 private:
  // Judged after so many events; smaller above the first share of events undone, larger below the second.
  static constexpr uint64_t kJudged = 1024;
  static constexpr double kTooMuchUndone = 0.05, kLittleUndone = 0.015;
  static constexpr double kSmallestStep = 0.25, kLargestStep = 0.75, kGrowth = 1.15, kFastGrowth = 2,
                          kWidest = 4;

  const bool adapted_;
  double width_;
  uint64_t executed_ = 0, rolled_back_ = 0;
  // Since the last judgement.
  double ahead_ = 0;
  bool held_ = false;
};

}  // namespace ckpt::timewarp
