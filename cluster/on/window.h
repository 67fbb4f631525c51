// How much one end of ckpt-on sends of a stream before the other end has passed it on: no more than the
// kernels hold between them. So neither end ever waits for long to send, however long the program at the end
// of a stream does not read, and the connection is never taken for a broken one.
//
// Owner:     cluster/on. One thread. Each end has one of both: of what it sends, and of what it gets.
// Callers:   both sides of ckpt-on, and of ckpt-srun.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

namespace ckpt::cluster {

inline constexpr size_t kMostUntaken = 48 << 10, kMostInFrame = 16 << 10;
inline constexpr size_t kFrameCost = 256;  // in the kernels' buffers, besides its bytes

class SendWindow {
 public:
  // How much the next frame may have; 0: none may be sent.
  size_t room() const {
    const size_t used = untaken_ + kFrameCost;
    return used >= kMostUntaken ? 0 : std::min(kMostInFrame, kMostUntaken - used);
  }
  void sent(size_t bytes) { untaken_ += bytes + kFrameCost; }
  // The frame 'w' without its first byte.
  void heard(std::string_view word) {
    size_t taken = 0;
    std::from_chars(word.data(), word.data() + word.size(), taken);
    untaken_ -= std::min(untaken_, taken);
  }

 private:
  size_t untaken_ = 0;
};

class ReceiveWindow {
 public:
  void took_frame() { taken_ += kFrameCost; }
  void passed_on(size_t bytes) { taken_ += bytes; }
  // The frame that is to be sent of it now; empty: not yet. Half of a window is told at once, so the other
  // end never waits when all was passed on.
  std::string word() {
    if (taken_ < kMostUntaken / 2) return "";
    std::string frame = "w" + std::to_string(taken_);
    taken_ = 0;
    return frame;
  }

 private:
  size_t taken_ = 0;
};

}  // namespace ckpt::cluster
