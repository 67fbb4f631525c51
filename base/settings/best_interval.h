// The time between two checkpoints at which the least is lost: equation (1) of Plank, Li and Puening 1998,
// Vaidya's.
//
// Owner: base. Callers: ckpt plan, the head of a job over hosts, and the agent in a program
// (CKPT_EVERY=auto).
// Never: allocates, calls the C library: no logarithm of its own is there in the program.
#pragma once

#include <cstdint>

namespace ckpt {

// log(1 - x) for 0 <= x < 1. Small x keep what they have.
inline double log_of_rest(double x) {
  constexpr double kLn2 = 0.69314718055994530942;
  double twos = 0;
  if (x > 0.5) {
    double rest = 1 - x;
    if (rest <= 0) return -1e300;
    while (rest < 0.5) {
      rest *= 2;
      twos += kLn2;
    }
    x = 1 - rest;
  }
  // 2 artanh, of at most a third: a term has less than a ninth of the one before.
  const double z = x / (2 - x), square = z * z;
  double power = z, sum = 0;
  for (int n = 1; n < 40; n += 2) {
    sum += power / n;
    power *= square;
  }
  return -2 * sum - twos;
}

// e^(lambda (T + O)) (1 - lambda T) = 1, T not 0; lambda = 1 / mtbf. With x = lambda T: f(x) = x + lambda O +
// log(1 - x), which is positive at 0, falls, and goes to minus infinity at 1: one root, by halving. All in
// seconds; overhead > 0, mtbf > 0.
inline double best_interval(double mtbf, double overhead) {
  double low = 0, high = 1;
  for (int i = 0; i < 200; ++i) {
    const double x = low + (high - low) / 2;
    if (x + overhead / mtbf + log_of_rest(x) > 0)
      low = x;
    else
      high = x;
  }
  return low * mtbf;
}

// The same in force: of the last checkpoints of one program or job.
//
// Owner: whoever takes them, in one thread. Plain data: an image may hold it.
class AutoInterval {
 public:
  // Before anything was measured.
  static constexpr int64_t kFirstNs = 1'000'000'000;
  // What holds where nobody has said how often hosts fail, and none has failed yet.
  static constexpr int64_t kMtbfNs = 24LL * 3600 * 1'000'000'000;

  // overhead_ns: of this checkpoint. latency_ns: until it counted.
  void learn(int64_t overhead_ns, int64_t latency_ns, int64_t mtbf_ns) {
    overheads_[count_++ % kLast] = overhead_ns > 1 ? overhead_ns : 1;
    mtbf_ns_ = mtbf_ns;
    latency_ns_ = latency_ns;
    overhead_ns_ = median();
    ns_ = static_cast<int64_t>(
        best_interval(static_cast<double>(mtbf_ns) / 1e9, static_cast<double>(overhead_ns_) / 1e9) * 1e9);
    // None begins before the one before counts.
    if (ns_ < latency_ns) ns_ = latency_ns;
    constexpr int64_t kStep = 1'000'000;
    ns_ = ns_ < kStep ? kStep : ns_ / kStep * kStep;
  }
  int64_t ns() const { return ns_; }
  int64_t overhead_ns() const { return overhead_ns_; }  // median of the last
  int64_t latency_ns() const { return latency_ns_; }    // of the last
  int64_t mtbf_ns() const { return mtbf_ns_; }
  bool measured() const { return count_ != 0; }

 private:
  static constexpr unsigned kLast = 7;

  int64_t median() const {
    int64_t sorted[kLast] = {};
    unsigned n = 0;
    for (; n < kLast && n < count_; ++n) {
      unsigned at = n;
      for (; at > 0 && sorted[at - 1] > overheads_[n]; --at) sorted[at] = sorted[at - 1];
      sorted[at] = overheads_[n];
    }
    return sorted[n / 2];
  }

  int64_t overheads_[kLast] = {};
  unsigned count_ = 0;
  int64_t ns_ = kFirstNs, overhead_ns_ = 0, latency_ns_ = 0, mtbf_ns_ = 0;
};

}  // namespace ckpt
