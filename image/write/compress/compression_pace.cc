#include "image/write/compress/compression_pace.h"
#include "base/preload_rules.h"

namespace ckpt {

void CompressionPace::start(bool overlapped, int most) {
  if (overlapped != overlapped_) *this = {};
  overlapped_ = overlapped;
  most_ = most;
  set(acceleration_);
}

void CompressionPace::wrote(int64_t period_ns, int64_t waited_ns) {
  period_ns_ += period_ns;
  waited_ns_ += waited_ns;
  ++chunks_;
}

void CompressionPace::finish() {
  if (chunks_ < kLeastChunks) return;
  const auto period = static_cast<double>(period_ns_), waited = static_cast<double>(waited_ns_);
  const double little = overlapped_ ? 0.1 : 0.4, much = overlapped_ ? 0.4 : 0.8;
  if (waited < little * period)
    set(acceleration_ * kStep);
  else if (waited > much * period)
    set(acceleration_ / kStep);
  period_ns_ = waited_ns_ = 0;
  chunks_ = 0;
}

}  // namespace ckpt
