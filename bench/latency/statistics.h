// Medians and percentiles of a few numbers.
//
// Owner: bench/latency. Header only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace latency {

// The least value that `share` of all do not exceed (nearest rank); 0 of none.
inline double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  size_t at = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}
inline double smallest(const std::vector<double>& values) { return percentile(values, 0); }
inline double largest(const std::vector<double>& values) { return percentile(values, 1); }
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace latency
