#include "timewarp/state/non_blocking.h"

#include <algorithm>
#include <cmath>

namespace ckpt::timewarp {

namespace {
constexpr size_t kMostBytes = 256 << 10;   // CopyRequest: 64 pages
constexpr uint32_t kMostSlots = 1u << 16;  // more copies than that at a time are refused
}  // namespace

bool NonBlocking::start(NonBlockingCopy& copy, double threshold) {
  if (mono_ && last_ != nullptr && last_ != &copy && last_->state == NonBlockingCopy::State::kQueued) {
    last_->outcome = settle(*last_, last_->must ? 0 : threshold);
    last_->state = NonBlockingCopy::State::kSettled;
  }
  if (!copier_->start(copy)) return false;
  copy.state = NonBlockingCopy::State::kQueued;
  last_ = &copy;
  return true;
}

Settled NonBlocking::settle(NonBlockingCopy& copy, double threshold) {
  const bool settled = copy.state == NonBlockingCopy::State::kSettled;
  copy.state = NonBlockingCopy::State::kNone;
  if (settled) return copy.outcome;
  return copier_->settle(copy, threshold > 1 ? 101 : static_cast<uint32_t>(std::lround(threshold * 100)));
}

std::unique_ptr<NonBlocking> make_non_blocking(const ckpt_tw_options& options, size_t most_bytes,
                                               uint32_t most_copies, std::string* why) {
  if (most_bytes > kMostBytes) {
    *why = "non-blocking copies are of states of at most 262144 bytes, the model declares " +
           std::to_string(most_bytes) + ": choose another way of going back";
    return nullptr;
  }
  const uint32_t copies = std::min(most_copies, kMostSlots);
  std::unique_ptr<BackgroundCopier> copier;
  switch (options.copier) {
    case CKPT_TW_DEVICE:
    case CKPT_TW_DEVICE_THREAD:
      copier = make_device_copier(options, std::max<size_t>(most_bytes, 1), copies,
                                  options.copier == CKPT_TW_DEVICE_THREAD);
      break;
    case CKPT_TW_HELPER:
      copier = make_helper_copier(copies);
      break;
    case CKPT_TW_DSA:
      copier = make_dsa_copier(copies, why);
      if (copier == nullptr) return nullptr;
      break;
  }
  return std::make_unique<NonBlocking>(std::move(copier), options.monoprogrammed != 0);
}

}  // namespace ckpt::timewarp
