// The chunk that is being filled: takes extents until it is full, and hands it on. Extents may stay where
// they are, in buffers that are held until the chunk is written.
//
// Owner:     image/write (DirectSink). Callers: the sink's thread only, in the victim. Memory from the arena
//            of start(). Never: releases a buffer before the chunk that holds it is written or given up.
#pragma once

#include "image/write/compress/compression_plan.h"
#include "image/write/sink/chunk_builder.h"
#include "image/write/sink/held_buffers.h"
#include "image/write/sink/section_writer.h"

namespace ckpt {

class ChunkWriter {
 public:
  ChunkWriter(SlotWriter& slots, SectionWriter& sections, CompressionPlan& plan)
      : slots_(slots), sections_(sections), plan_(plan) {}

  void start(const SinkOptions& options) {
    options_ = &options;
    chunk_.forget();
  }
  // So many buffers at most are held at a time, where the output can gather them.
  Result<void> start_holding(size_t most, ReleaseBuffer release, void* context, Arena& arena);
  // Releases what is held. Any number of times.
  void stop() { held_.stop(); }

  // There is a chunk with room for so many bytes of body; the one before is handed on if it has not.
  Result<void> make_room(uint32_t bytes);
  // Hands on what there is.
  Result<void> flush();
  // Of a chunk that has been begun by make_room().
  ChunkBuilder& chunk() { return chunk_; }
  // In the image, of the next extent of the chunk.
  uint64_t next_offset() const { return slots_.offset() + chunk_.next_offset(); }
  uint32_t most_body() const { return slots_.slot_bytes() - options_->head_bytes; }

  bool holds() const { return held_.active(); }
  bool holds_enough() const { return held_.full(slot_); }
  // The chunk refers to this buffer.
  void hold(uint32_t buffer) { held_.add(slot_, buffer); }
  // Tells chunks apart, one that is being filled from the one after it.
  uint32_t slot() const { return slot_; }

 private:
  SlotWriter& slots_;
  SectionWriter& sections_;
  CompressionPlan& plan_;
  const SinkOptions* options_ = nullptr;
  ChunkBuilder chunk_;
  HeldBuffers held_;
  uint32_t slot_ = 0;
};

}  // namespace ckpt
