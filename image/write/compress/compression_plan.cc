#include "image/write/compress/compression_plan.h"

#include <algorithm>
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// How much is compressed until it is asked whether a helper pays.
constexpr uint32_t kBytesLookedAt = 16u << 20;

}  // namespace

void CompressionPlan::start(const SinkOptions& options, bool overlaps) {
  options_ = &options;
  if (options.knowledge != nullptr) {
    gauge_ = options.knowledge->gauge;
    pace_ = options.knowledge->pace;
  } else {
    gauge_ = {};
    pace_ = {};
  }
  gauge_.start(overlaps);
  pace_.start(overlaps, options.adaptive ? CompressionPace::kMostForTime : CompressionPace::kMost);
  chunk_packed_ = false;
  chunk_began_ns_ = packing_since_ns_ = options.clock();
  packing_ns_ = gathering_ns_ = 0;
  packed_ = 0;
  memory_bytes_ = memory_told_ = 0;
}

void CompressionPlan::first_memory() {
  if (options_->is_measured()) chunk_began_ns_ = packing_since_ns_ = options_->clock();
}

int CompressionPlan::acceleration() const {
  return options_->adaptive && gauge_.tries_next() && gauge_.tries_quickest() ? pace_.most()
                                                                              : pace_.acceleration();
}

// Has the writer hardly done anything else? Then neither memory that arrives nor the device holds it up, and
// a helper pays. Else it would only change places with the others on the processors that the program leaves.
bool CompressionPlan::helper_pays(uint32_t bytes, int64_t writers_ns) {
  packing_ns_ += writers_ns;
  packed_ += bytes;
  if (packed_ < kBytesLookedAt) return false;
  const int64_t now = options_->clock();
  const bool pays = packing_ns_ > (now - packing_since_ns_) / 4 * 3;
  packing_since_ns_ = now;
  packing_ns_ = 0;
  packed_ = 0;
  return pays;
}

// With helpers at work it is the writer's time that counts. Whether there would be a processor for one is not
// known before.
void CompressionPlan::compressed(uint32_t bytes, uint32_t stored, int64_t ns, int64_t writers_ns,
                                 int acceleration, bool helped) {
  chunk_packed_ = true;
  if (!options_->adaptive) return;
  const bool tried = gauge_.tries_next();
  gauge_.compressed(bytes, stored, (helped ? writers_ns : ns) + gathering_ns_, writers_ns + gathering_ns_);
  gathering_ns_ = 0;
  if (tried && !gauge_.tries_next()) pace_.set(acceleration);
}

void CompressionPlan::chunk_written(uint32_t bytes, int64_t waited_ns, int64_t sealed_ns) {
  const int64_t now = options_->clock();
  if (options_->adaptive) {
    // Bytes that helpers still have, and that will be found repeated, have been told to the gauge already.
    gauge_.wrote(bytes, memory_bytes_ - std::min(memory_told_, memory_bytes_), now - chunk_began_ns_,
                 waited_ns, sealed_ns);
    memory_told_ = memory_bytes_;
  }
  if (chunk_packed_) pace_.wrote(now - chunk_began_ns_, waited_ns);
  chunk_packed_ = false;
  chunk_began_ns_ = now;
}

void CompressionPlan::finish() {
  pace_.finish();
  if (options_->knowledge != nullptr) *options_->knowledge = {gauge_, pace_};
}

}  // namespace ckpt
