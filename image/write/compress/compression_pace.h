// How hard lz4 looks for what repeats: its acceleration, so that neither the device nor the compressor waits
// long for the other.
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. No allocation, no I/O.
//
// Little waiting for the device: the compressor holds images up, and is made quicker. Much waiting: there is
// time to find more. Where writes are waited for one by one the two take turns instead, and each should have
// half of the time. The acceleration that one image teaches is for the next: with two accelerations in one
// image, memory with the same bytes would not be found to be the same (repeated_segments.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace ckpt {

class CompressionPace {
 public:
  // Of lz4 where it was asked for: files still become smaller. Where only the time counts it may go on to
  // hardly looking.
  static constexpr int kMost = 16, kMostForTime = 64;

  // overlapped: writes go on while the next chunk is gathered. The acceleration learned before stays.
  void start(bool overlapped, int most);
  // The same for the whole image, but for set().
  int acceleration() const { return acceleration_; }
  int most() const { return most_; }
  void set(int acceleration) { acceleration_ = std::clamp(acceleration, 1, most_); }
  // A chunk of which something was compressed was handed to the device: the time since the last, and how much
  // of it the writer waited.
  void wrote(int64_t period_ns, int64_t waited_ns);
  // Nothing is left to compress, and so long the device took for the rest.
  void ended(int64_t waited_ns) {
    period_ns_ += waited_ns;
    waited_ns_ += waited_ns;
  }
  // The image is written: what is best for the next?
  void finish();

 private:
  static constexpr uint32_t kLeastChunks =
      16;  // before they say anything; those of small images are added up
  static constexpr int kFirst = 4, kStep = 4;

  bool overlapped_ = true;
  int acceleration_ = kFirst, most_ = kMost;
  int64_t period_ns_ = 0, waited_ns_ = 0;
  uint32_t chunks_ = 0;
};

}  // namespace ckpt
