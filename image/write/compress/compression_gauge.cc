#include "image/write/compress/compression_gauge.h"

#include <algorithm>
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// The ratio of times below which compressing pays: with a smaller gain, noise would switch it on and off.
constexpr double kWorthwhile = 0.95;

// The average includes time when another process had the processor.
void average(double& value, double sample) { value = value == 0 ? sample : value + (sample - value) / 8; }

double ratio(int64_t ns, uint64_t bytes) {
  return static_cast<double>(std::max<int64_t>(ns, 1)) / static_cast<double>(bytes);
}

}  // namespace

void CompressionGauge::start(bool overlapped) {
  if (overlapped != overlapped_) *this = {};
  overlapped_ = overlapped;
  judged_bytes_ = judged_stored_ = 0;
  judged_ns_ = compressing_ns_ = 0;
  packed_ = false;
}

bool CompressionGauge::pays() const {
  auto time = [&](double all_else, double compressing, double left) {
    const double here = all_else + compressing + left * sealing_, writing = left * device_;
    return overlapped_ ? std::max(here, writing) : here + writing;
  };
  return time(std::max(else_plain_, else_packed_), compressor_, left_) <
         time(else_plain_, 0, 1) * kWorthwhile;
}

void CompressionGauge::rest() {
  compressing_ = false;
  lasted_ = 0;
  // The time of all else while extents were compressed may be different now: it is forgotten bit by bit.
  if (else_packed_ > else_plain_) else_packed_ += (else_plain_ - else_packed_) / 4;
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
}

void CompressionGauge::compressed(uint64_t bytes, uint64_t stored, int64_t ns, int64_t writers_ns) {
  compressing_ns_ += writers_ns;
  packed_ = true;
  if (!compressing_) {
    ++tries_;
    compressor_ = ratio(ns, bytes);
    left_ = static_cast<double>(stored) / static_cast<double>(bytes);
    if (!pays()) return rest();
    compressing_ = true;
    judged_bytes_ = judged_stored_ = 0;
    judged_ns_ = 0;
    return;
  }
  judged_bytes_ += bytes;
  judged_stored_ += stored;
  judged_ns_ += ns;
  if (judged_bytes_ < kJudged) return;
  compressor_ = ratio(judged_ns_, judged_bytes_);
  left_ = static_cast<double>(judged_stored_) / static_cast<double>(judged_bytes_);
  judged_bytes_ = judged_stored_ = 0;
  judged_ns_ = 0;
  if (!pays()) return rest();
  if (++lasted_ == kLasting) next_rest_ = kFirstRest;
}

void CompressionGauge::wrote(uint64_t bytes, uint64_t memory, int64_t period_ns, int64_t waited_ns,
                             int64_t sealed_ns) {
  const int64_t rest = std::max<int64_t>(period_ns - waited_ns - sealed_ns - compressing_ns_, 0);
  const bool plain = !packed_, mostly_waited = waited_ns > 0 && waited_ns >= period_ns / 2;
  compressing_ns_ = 0;
  packed_ = false;
  if (memory > 0) average(plain ? else_plain_ : else_packed_, ratio(rest, memory));
  if (sealed_ns > 0) {
    average(sealing_, ratio(sealed_ns, bytes));
    // There is something to gain even if the device is never waited for.
    if (plain && samples_ < kSamples) ++samples_;
  } else {
    sealing_ = 0;
  }
  // With writes in flight only a writer that mostly waits sees the device at work without a break. A writer
  // that compresses would see the device only in its slow moments.
  if (!plain || waited_ns <= 0 || (overlapped_ && !mostly_waited)) {
    // Waited for although less is written: it is slow enough still.
    if (mostly_waited) blind_chunks_ = 0;
    if (samples_ == kSamples && ++blind_chunks_ == kBlindChunks) {
      blind_chunks_ = 0;
      samples_ = kSamples / 2;
    }
    return;
  }
  blind_chunks_ = 0;
  if (sealed_ns <= 0 && samples_ < kSamples) ++samples_;
  average(device_, ratio(overlapped_ ? period_ns : waited_ns, bytes));
}

}  // namespace ckpt
