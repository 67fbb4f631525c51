// The part of MemoryWriter that compresses: from where segments are, or what was gathered.
#include <bit>
#include <cstring>

#include "base/memory/page_runs.h"
#include "image/write/sink/memory_writer.h"
#include "base/preload_rules.h"

namespace ckpt {

// Memory compressed at once. lz4 looks back no farther than 64 KiB, and is faster with no more; zstd gets
// what compresses well and is still small enough that a reader of one page does not unpack much.
uint32_t MemoryWriter::packed_limit(uint64_t address) const {
  return options_->codec == Codec::kLz4 ? static_cast<uint32_t>(kExtentBytes - address % kExtentBytes)
                                        : Compressor::kMaxInput;
}

// Where nobody helps, a whole extent that lies in one piece is compressed from where it is to where it is
// written from. In a chunk it must have room for the worst: at the end of one it is copied there when its
// length is known, as that of helpers is, so that chunks are the same.
Result<void> MemoryWriter::pack_in_place(uint64_t address, const std::byte* data, uint32_t length) {
  ChunkBuilder& chunk = chunks_.chunk();
  const bool into_chunk = chunk.active() && chunk.room() >= length;
  count(length);
  crew_.accelerate(plan_.acceleration());
  const CompressionCrew::Extent e =
      crew_.compress_here(address, {data, length}, into_chunk ? chunk.next_body() : nullptr);
  return add_packed(e, e.ns);
}

// Does the segment belong to the extent that is being gathered to be compressed?
bool MemoryWriter::goes_on(const CopiedSegment& segment) const {
  const uint64_t address =
      segment.base.value + static_cast<uint64_t>(std::countr_zero(segment.page_mask)) * kPageSize;
  return extent_.active && extent_.pack && extent_.address + extent_.length == address &&
         extent_.length < extent_.limit;
}

// With helpers a segment that is one whole extent, not the end of one, stays where it is until it has been
// compressed.
bool MemoryWriter::packs_held(const CopiedSegment& segment) const {
  if (!crew_holds_ || crew_.helpers() == 0 || !plan_.packs_next() || goes_on(segment)) return false;
  const PageRuns runs(segment.page_mask);
  if (runs.count() != 1) return false;
  const PageRun run = *runs.begin();
  return run.bytes() == packed_limit((segment.base + run.offset()).value);
}

Result<void> MemoryWriter::pack_held(const CopiedSegment& segment, bool* held) {
  const uint64_t first = static_cast<uint64_t>(std::countr_zero(segment.page_mask)) * kPageSize;
  const auto bytes =
      static_cast<uint32_t>(std::popcount(segment.page_mask)) * static_cast<uint32_t>(kPageSize);
  CKPT_TRY(close_extent());
  if (crew_.full()) CKPT_TRY(add_oldest());
  crew_.accelerate(plan_.acceleration());
  crew_.submit_held(segment.base.value + first, {segment.data + first, bytes}, segment.buffer);
  *held = true;
  count(bytes);
  return {};
}

// The crew's oldest extent goes into a chunk.
Result<void> MemoryWriter::add_oldest() {
  const int64_t before = crew_.helpers() == 0 ? 0 : options_->clock();
  const CompressionCrew::Extent& e = crew_.oldest();
  CKPT_TRY(add_packed(e, crew_.helpers() == 0 ? e.ns : options_->clock() - before));
  crew_.retired();
  return {};
}

// took: of the writer's time.
Result<void> MemoryWriter::add_packed(const CompressionCrew::Extent& e, int64_t took) {
  if (plan_.helper_pays(e.length, took)) crew_.add_helper();
  const bool packed = e.stored > 0;
  const uint32_t stored = packed ? e.stored : e.length;
  plan_.compressed(e.length, stored, e.ns, took, e.acceleration, crew_.helpers() > 0);
  const Codec codec = packed ? options_->codec : Codec::kNone;
  const std::span<const std::byte> bytes(packed ? e.packed : e.raw, round_up_to_block(stored));
  auto repeated =
      list_repeated({e.address, e.length, stored, e.checksum, static_cast<uint32_t>(codec), 0}, bytes);
  if (!repeated.ok()) return repeated.error();
  if (*repeated) return {};
  CKPT_TRY(chunks_.make_room(static_cast<uint32_t>(bytes.size())));
  ChunkBuilder& chunk = chunks_.chunk();
  if (bytes.data() != chunk.next_body()) std::memcpy(chunk.next_body(), bytes.data(), stored);
  const uint64_t offset = chunks_.next_offset();
  return stored_.list(chunk.add(e.address, e.length, stored, codec, &e.checksum), offset, bytes);
}

}  // namespace ckpt
