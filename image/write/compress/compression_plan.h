// Shall the next extent be compressed, how hard, and does a helper pay? What gauge and pace say of what was
// measured while this image is written.
//
// Owner:     image/write (DirectSink). Callers: the sink's thread only, in the victim. No allocation, no I/O.
#pragma once

#include "image/write/sink_options.h"

namespace ckpt {

class CompressionPlan {
 public:
  // overlaps: writes go on while the next chunk is gathered.
  void start(const SinkOptions& options, bool overlaps);
  // The first memory has come. The time before, with the stop in it, counts as no wait.
  void first_memory();

  bool packs_next() const {
    return options_->compressing() && (!options_->adaptive || gauge_.compress_next());
  }
  // The acceleration of what is compressed next.
  int acceleration() const;

  void memory_came(uint64_t bytes) { memory_bytes_ += bytes; }
  // Repeated memory need not be stored: the gauge learns nothing from it.
  void repeated(uint64_t bytes) { memory_told_ += bytes; }
  // An extent was not compressed.
  void left_alone() { gauge_.left_alone(); }
  // A copy was made that only compression needs.
  void gathered(int64_t ns) { gathering_ns_ += ns; }
  // An extent of `bytes` was compressed, which took so much of the writer's time. Does a helper pay?
  bool helper_pays(uint32_t bytes, int64_t writers_ns);
  // The same extent: what is left of it, the time that compressing took, and how hard it was tried.
  // helped: helpers are at work.
  void compressed(uint32_t bytes, uint32_t stored, int64_t ns, int64_t writers_ns, int acceleration,
                  bool helped);
  // A chunk went to the device, which was waited for since the last one; and so long it was encrypted.
  void chunk_written(uint32_t bytes, int64_t waited_ns, int64_t sealed_ns);
  // Nothing is left to compress, and so long the device took for the rest.
  void ended(int64_t waited_ns) { pace_.ended(waited_ns); }
  // The image is written: what it teaches.
  void finish();

 private:
  const SinkOptions* options_ = nullptr;
  CompressionGauge gauge_;
  CompressionPace pace_;
  int64_t chunk_began_ns_ = 0;
  bool chunk_packed_ = false;  // something was compressed since the last chunk
  int64_t gathering_ns_ = 0;   // since the last extent that was compressed
  // Compression, since it was asked whether a helper pays: bytes, what they took of the writer's time, and
  // when.
  uint32_t packed_ = 0;
  int64_t packing_ns_ = 0, packing_since_ns_ = 0;
  uint64_t memory_bytes_ = 0, memory_told_ = 0;  // that has come, and that the gauge knows of
};

}  // namespace ckpt
