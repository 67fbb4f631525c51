// Does compression make the image durable sooner? Measured while it is written, for CKPT_COMPRESS=auto.
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. No allocation, no I/O.
//
// What is measured: the device's rate, the compressor's rate, what is left of the memory that it is given,
// and the time that all else takes (memory that arrives, copies, checksums). A byte of memory then takes
//   where writes go on while the next chunk is gathered:  max(else + compressing, left / device),
//   where each write is waited for:                       else + compressing + left / device,
// (with a key, else has also left * encrypting, for what is written is encrypted first)
// and compression is used where that is less than with compressing 0 and left 1. All else takes longer where
// processors are busy compressing: it is measured apart for chunks with compressed memory and without. The
// first chunks are plain: the device's rate is known once the writer has waited for it a few times. While it
// never waits, and need not encrypt, there is nothing to gain. A writer that compresses may stop waiting, so
// that a device that has become faster is not noticed: then some plain chunks are written again. Memory that
// does not compress, or not fast enough, is left alone for a while, twice as long each time: at worst one
// extent in 1024 is compressed in vain. One extent alone is a try; what goes on being compressed is judged by
// 4 MiB, so that a turn of another process on the processor does not end it. The measurements serve the next
// image as well (CompressionKnowledge), except in mode fork, whose images a child writes.
#pragma once

#include <cstdint>

#include "image/write/compress/compression_pace.h"

namespace ckpt {

class CompressionGauge {
 public:
  // overlapped: writes go on while the next chunk is gathered. Measurements of a device that is written to in
  // the same way stay.
  void start(bool overlapped);

  // Shall the next extent be compressed?
  bool compress_next() const { return samples_ >= kSamples && rest_ == 0; }
  // And is it the first after some that were not? By turns the quickest way and the one that was best the
  // last time.
  bool tries_next() const { return !compressing_; }
  bool tries_quickest() const { return tries_ % 2 == 0; }
  // An extent was not compressed.
  void left_alone() {
    if (samples_ >= kSamples && rest_ > 0) --rest_;
  }
  // An extent was compressed: bytes before and after (the same when it could not be), the time it costs, and
  // what it took of the writer's.
  void compressed(uint64_t bytes, uint64_t stored, int64_t ns, int64_t writers_ns);
  // A chunk of `bytes` was handed to the device, `memory` bytes before compression: the time since the last,
  // how much of it the writer waited, and how much it encrypted.
  void wrote(uint64_t bytes, uint64_t memory, int64_t period_ns, int64_t waited_ns, int64_t sealed_ns = 0);

 private:
  bool pays() const;
  void rest();

  // Of plain extents (64 KiB, mostly), between two tries.
  static constexpr uint32_t kFirstRest = 64, kLongestRest = 1024;
  static constexpr uint32_t kSamples = 8;        // of the device's rate before it counts
  static constexpr uint32_t kBlindChunks = 128;  // without a sample, until it is looked at again
  static constexpr uint64_t kJudged = 4u << 20;  // bytes compressed, then it is asked again whether it pays
  static constexpr uint32_t kLasting = 8;        // times that it did: the next rest is a short one again

  bool overlapped_ = true, compressing_ = false;
  double device_ = 0, compressor_ = 0;       // ns for each byte: averages of times, not of rates; 0 not known
  double sealing_ = 0;                       // ns to encrypt each byte that is stored
  double left_ = 1;                          // stored bytes for each byte of memory
  double else_plain_ = 0, else_packed_ = 0;  // ns for each byte of memory
  uint64_t judged_bytes_ = 0, judged_stored_ = 0;
  int64_t judged_ns_ = 0;
  uint32_t lasted_ = 0, tries_ = 0;
  int64_t compressing_ns_ = 0;  // since the last chunk
  bool packed_ = false;         // in this chunk
  uint32_t rest_ = 0, next_rest_ = kFirstRest;
  uint32_t samples_ = 0, blind_chunks_ = 0;
};

// What one image teaches for the next of the same program. A sink without it begins anew each time.
struct CompressionKnowledge {
  CompressionGauge gauge;
  CompressionPace pace;
};

}  // namespace ckpt
