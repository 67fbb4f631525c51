#include "writer/compression_gauge.h"

namespace ckpt {

namespace {

// What must be won: below that, noise would switch it on and off.
constexpr double kWorthwhile = 0.95;

// Of times: a turn of another process on the processor counts with all that it took.
void average(double& value, double sample, bool first) { value = first ? sample : value + (sample - value) / 4; }

}  // namespace

bool CompressionGauge::pays() const {
  auto time = [&](double compressing, double left) {
    const double here = else_ + compressing, writing = left * device_;
    return !overlapped_ ? here + writing : here > writing ? here : writing;
  };
  return time(compressor_, left_) < time(0, 1) * kWorthwhile;
}

void CompressionGauge::compressed(uint64_t bytes, uint64_t stored, int64_t ns, int64_t writers_ns) {
  const bool first = compressor_ == 0;
  compressing_ns_ += writers_ns;
  average(compressor_, static_cast<double>(ns > 0 ? ns : 1) / static_cast<double>(bytes), first);
  average(left_, static_cast<double>(stored) / static_cast<double>(bytes), first);
  if (pays()) {
    next_rest_ = kFirstRest;
    return;
  }
  rest_ = next_rest_;
  if (next_rest_ < kLongestRest) next_rest_ *= 2;
}

void CompressionGauge::wrote(uint64_t bytes, uint64_t memory, int64_t period_ns, int64_t waited_ns) {
  const int64_t rest = period_ns - waited_ns - compressing_ns_;
  const bool plain = compressing_ns_ == 0;
  compressing_ns_ = 0;
  if (memory > 0) average(else_, static_cast<double>(rest > 0 ? rest : 0) / static_cast<double>(memory), else_ == 0);
  // With writes in flight only a writer that mostly waits sees the device at work without a break. One that
  // compresses would see it only in its slow moments.
  if (!plain || waited_ns <= 0 || (overlapped_ && waited_ns < period_ns / 2)) {
    if (samples_ == kSamples && ++blind_chunks_ == kBlindChunks) {
      blind_chunks_ = 0;
      samples_ = kSamples / 2;
    }
    return;
  }
  blind_chunks_ = 0;
  if (samples_ < kSamples) ++samples_;
  const int64_t busy = overlapped_ ? period_ns : waited_ns;
  average(device_, static_cast<double>(busy) / static_cast<double>(bytes), device_ == 0);
}

}  // namespace ckpt
