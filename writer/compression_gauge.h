// Does compression make the image durable sooner? Measured while it is written, for CKPT_COMPRESS=auto.
//
// Owner:     writer. Callers: the writer thread only, in the victim. No allocation, no I/O.
//
// Four figures, each a moving average: the device's rate, the compressor's rate, what is left of the memory
// that it is given, and the time that all else takes (memory that arrives, copies, checksums). A byte of memory
// then takes
//   where writes go on while the next chunk is gathered:  max(else + compressing, left / device),
//   where each write is waited for:                       else + compressing + left / device,
// and compression is used where that is less than with compressing 0 and left 1.
// The first chunks are plain: the device's rate is known once the writer has waited for it a few times. While it
// never waits there is nothing to gain. A writer that compresses may stop waiting, so that a device that has become
// faster is not noticed: then some plain chunks are written again. Memory that does not compress, or not fast enough, is left alone for a
// while, twice as long each time: at worst one extent in 256 is compressed in vain.
#pragma once

#include <cstdint>

namespace ckpt {

class CompressionGauge {
 public:
  // overlapped: writes go on while the next chunk is gathered.
  void start(bool overlapped) { *this = CompressionGauge(overlapped); }

  // Shall the next extent be compressed?
  bool compress_next() const { return samples_ >= kSamples && rest_ == 0; }
  // It was not.
  void left_alone() {
    if (samples_ >= kSamples && rest_ > 0) --rest_;
  }
  // One was: bytes before and after (the same when it could not be), the time it costs when there are several at
  // once, and what it took of the writer's.
  void compressed(uint64_t bytes, uint64_t stored, int64_t ns, int64_t writers_ns);
  // A chunk of `bytes` was handed to the device, `memory` bytes before compression: the time since the last,
  // and how much of it the writer waited.
  void wrote(uint64_t bytes, uint64_t memory, int64_t period_ns, int64_t waited_ns);

  CompressionGauge() = default;

 private:
  explicit CompressionGauge(bool overlapped) : overlapped_(overlapped) {}
  bool pays() const;

  // Of plain extents (64 KiB, mostly), between two tries.
  static constexpr uint32_t kFirstRest = 64, kLongestRest = 1024;
  static constexpr uint32_t kSamples = 8;        // of the device's rate before it counts
  static constexpr uint32_t kBlindChunks = 128;  // without a sample, until it is looked at again

  bool overlapped_ = true;
  double device_ = 0, compressor_ = 0;  // ns for each byte: averages of times, not of rates; 0 not known
  double left_ = 1;                     // stored bytes for each byte of memory
  double else_ = 0;                     // ns for each byte of memory
  int64_t compressing_ns_ = 0;          // since the last chunk
  uint32_t rest_ = 0, next_rest_ = kFirstRest;
  uint32_t samples_ = 0, blind_chunks_ = 0;
};

}  // namespace ckpt
