// How far ahead of the slowest thread another may execute: given, or adapted to the share of events undone.
//
// Owner:     a thread of the optimistic engine.
// Callers:   that thread only: ran_to() after each batch, judge() at each GVT.
// Never:     decides what is right, only what is worth while: any width gives the same result.
//
// It shrinks by the share undone, from the distance to GVT that the thread has used since it was judged last:
// the mean over rounds of the longest in each. The last event executed may be a straggler just above GVT, and
// a width taken from that would be no window at all.
// It grows while little is undone, if it holds the thread back or is not far beyond what is used. Where it
// holds the thread back and nothing is undone it doubles: too small a width is not seen in the events,
// because each thread waits for the other's clock after a few.
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
  // A batch of events ended at this time. held: at the window, not for want of events.
  void ran_to(double time, bool held) {
    farthest_ = std::max(farthest_, time);
    held_ |= held;
  }
  // A round of GVT has ended. Totals of the thread, so far.
  void judge(double gvt, uint64_t executed, uint64_t rolled_back) {
    ahead_sum_ += std::max(farthest_ - gvt, 0.0);
    ++rounds_;
    farthest_ = 0;
    if (!adapted_ || executed - executed_ < kJudged) return;
    const double undone =
        static_cast<double>(rolled_back - rolled_back_) / static_cast<double>(executed - executed_);
    const double ahead = ahead_sum_ / static_cast<double>(rounds_);
    if (undone > kTooMuchUndone) {
      if (ahead > 0) width_ = std::min(width_, ahead);
      width_ *= std::clamp(1 - undone, kSmallestStep, kLargestStep);
    } else if (undone < kLittleUndone && (held_ || width_ < kWidest * ahead)) {
      width_ *= held_ && rolled_back == rolled_back_ ? kFastGrowth : kGrowth;
    }
    executed_ = executed;
    rolled_back_ = rolled_back;
    ahead_sum_ = 0;
    rounds_ = 0;
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
  double farthest_ = 0;  // since the last round of GVT
  // Since the last judgement.
  double ahead_sum_ = 0;
  uint64_t rounds_ = 0;
  bool held_ = false;
};

}  // namespace ckpt::timewarp
