// Counts of durations in classes that are 1/16 of a power of two wide: 6 % is exact enough.
//
// Owner:     bench/gaps. Header only.
// Callers:   one thread each; added up when all have ended.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace bench {

class Histogram {
 public:
  void add(uint64_t ns) {
    ++counts_[class_of(ns)];
    ++total_;
    largest_ = std::max(largest_, ns);
  }
  void add(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    largest_ = std::max(largest_, other.largest_);
  }
  // The least value (upper end of its class) that `share` of all durations do not exceed, in ns.
  uint64_t percentile(double share) const {
    auto wanted = static_cast<uint64_t>(share * static_cast<double>(total_));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > wanted) return std::min(end_of(i), largest_);
    }
    return largest_;
  }
  // Sum of the durations in classes from `ns` on, approximately, in ns.
  uint64_t time_in_gaps_from(uint64_t ns) const {
    uint64_t time = 0;
    for (size_t i = class_of(ns); i < counts_.size(); ++i) time += counts_[i] * end_of(i);
    return time;
  }
  uint64_t total() const { return total_; }
  uint64_t largest() const { return largest_; }

 private:
  static constexpr unsigned kFine = 16;
  static size_t class_of(uint64_t ns) {
    if (ns < kFine) return ns;
    unsigned power = static_cast<unsigned>(std::bit_width(ns)) - 1;  // 4 or more
    return (power - 3) * kFine + ((ns >> (power - 4)) & (kFine - 1));
  }
  static uint64_t end_of(size_t i) {
    if (i < kFine) return i;
    uint64_t power = i / kFine + 3, fine = i % kFine;
    return ((kFine + fine + 1) << (power - 4)) - 1;
  }

  std::array<uint64_t, 62 * kFine> counts_{};
  uint64_t total_ = 0, largest_ = 0;
};

}  // namespace bench
