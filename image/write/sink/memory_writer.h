// Memory on its way into chunks. Runs of pages become extents, which are
//   gathered         copied behind each other to where they are written from   (memory_writer.cc)
//   held             written from where they are                               (memory_writer_held.cc)
//   compressed       by the crew, from where they are or from a copy           (memory_writer_packed.cc)
// and, where the image has the same bytes already, only listed.
//
// Owner:     image/write (DirectSink). Callers: the sink's thread only, in the victim. Memory from the arena
//            of start(). Never: waits for anything but the output.
#pragma once

#include "image/write/compress/compression_crew.h"
#include "image/write/sink/chunk_writer.h"
#include "image/write/sink/stored_extents.h"

namespace ckpt {

class MemoryWriter {
 public:
  MemoryWriter(SlotWriter& slots, ChunkWriter& chunks, StoredExtents& stored, CompressionPlan& plan)
      : slots_(slots), chunks_(chunks), stored_(stored), plan_(plan) {}

  // The crew comes first: what it takes of the buffers that may be held is known then.
  Result<void> start_crew(const SinkOptions& options, Arena& arena, ReleaseBuffer release, void* context);
  // The output is open, and the plan made.
  Result<void> start(Arena& arena, ReleaseBuffer release, void* context);
  // Helpers are gone, and their buffers released, when it returns. Any number of times.
  void stop() { crew_.stop(); }

  // held: set where the segment's buffer is released later, by the crew or with its chunk.
  Result<void> add(const CopiedSegment& segment, bool* held);
  // What is under way goes into chunks.
  Result<void> close();
  // Added so far.
  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  // Uncompressed extents, and those of lz4, end at multiples of this: when increments replace part of an
  // image's memory, what is left of it can be checked and read without the rest. A larger segment is cut
  // there.
  static constexpr uint64_t kExtentBytes = 64u << 10;

  struct OpenExtent {
    bool active;
    bool pack;  // gathered for the crew, to be compressed
    uint64_t address;
    uint32_t length, limit;
    std::byte* bytes;
  };

  void count(uint64_t bytes) {
    memory_bytes_ += bytes;
    plan_.memory_came(bytes);
  }
  Result<void> add_segment(const CopiedSegment& segment);
  Result<void> add_run(uint64_t address, const std::byte* data, uint64_t bytes, bool may_pack);
  Result<void> open_extent(uint64_t address, bool may_pack);
  Result<void> close_extent();
  Result<bool> list_repeated(const ExtentEntry& extent, std::span<const std::byte> bytes);

  Result<void> add_held(const CopiedSegment& segment, bool* held);
  Result<void> hold_run(const CopiedSegment& segment, uint64_t address, const std::byte* data, uint64_t bytes,
                        uint32_t chunk, bool* held);

  // Bytes that are read twice must not change meanwhile: lz4 refers back to bytes that it has read before.
  bool packs_in_place() const {
    return options_->codec == Codec::kLz4 && crew_.helpers() == 0 && options_->held_buffers != 0;
  }
  uint32_t packed_limit(uint64_t address) const;
  bool goes_on(const CopiedSegment& segment) const;
  bool packs_held(const CopiedSegment& segment) const;
  Result<void> pack_held(const CopiedSegment& segment, bool* held);
  Result<void> pack_in_place(uint64_t address, const std::byte* data, uint32_t length);
  Result<void> add_oldest();
  Result<void> add_packed(const CompressionCrew::Extent& extent, int64_t took);

  SlotWriter& slots_;
  ChunkWriter& chunks_;
  StoredExtents& stored_;
  CompressionPlan& plan_;
  const SinkOptions* options_ = nullptr;
  CompressionCrew crew_;
  bool crew_holds_ = false;
  OpenExtent extent_ = {};
  uint64_t memory_bytes_ = 0;
};

}  // namespace ckpt
