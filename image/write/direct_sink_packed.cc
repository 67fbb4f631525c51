// The part of DirectSink that compresses: from where segments are, or what was gathered.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/page_runs.h"
#include "image/write/direct_sink.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// How much is compressed until it is asked whether a helper pays.
constexpr uint32_t kBytesLookedAt = 16u << 20;

}  // namespace

// Memory compressed at once. lz4 looks back no farther than 64 KiB, and is faster with no more; zstd gets
// what compresses well and is still small enough that a reader of one page does not unpack much.
uint32_t DirectSink::packed_limit(uint64_t address) const {
  return options_.codec == Codec::kLz4 ? static_cast<uint32_t>(kExtentBytes - address % kExtentBytes)
                                       : Compressor::kMaxInput;
}

// Where nobody helps, a whole extent that lies in one piece is compressed from where it is to where it is
// written from. In a chunk it must have room for the worst: at the end of one it is copied there when its
// length is known, as that of helpers is, so that chunks are the same.
Result<void> DirectSink::pack_in_place(uint64_t address, const std::byte* data, uint32_t length) {
  const bool into_chunk = chunk_.active() && chunk_.room() >= length;
  memory_bytes_ += length;
  set_pace();
  const CompressionCrew::Extent e =
      crew_.compress_here(address, {data, length}, into_chunk ? chunk_.next_body() : nullptr);
  return add_packed(e, e.ns);
}

// Does the segment belong to the extent that is being gathered to be compressed?
bool DirectSink::goes_on(const CopiedSegment& segment) const {
  const uint64_t address =
      segment.base.value + static_cast<uint64_t>(std::countr_zero(segment.page_mask)) * kPageSize;
  return extent_.active && extent_.pack && extent_.address + extent_.length == address &&
         extent_.length < extent_.limit;
}

// With helpers a segment that is one whole extent, not the end of one, stays where it is until it has been
// compressed.
bool DirectSink::packs_held(const CopiedSegment& segment) const {
  if (!crew_holds_ || crew_.helpers() == 0 || !packs_next() || goes_on(segment)) return false;
  const PageRuns runs(segment.page_mask);
  if (runs.count() != 1) return false;
  const PageRun run = *runs.begin();
  return run.bytes() == packed_limit((segment.base + run.offset()).value);
}

Result<void> DirectSink::pack_held(const CopiedSegment& segment, bool* held) {
  const uint64_t first = static_cast<uint64_t>(std::countr_zero(segment.page_mask)) * kPageSize;
  const auto bytes =
      static_cast<uint32_t>(std::popcount(segment.page_mask)) * static_cast<uint32_t>(kPageSize);
  CKPT_TRY(close_extent());
  if (crew_.full()) CKPT_TRY(add_oldest());
  set_pace();
  crew_.submit_held(segment.base.value + first, {segment.data + first, bytes}, segment.buffer);
  *held = true;
  memory_bytes_ += bytes;
  return {};
}

// The crew's oldest extent goes into a chunk.
Result<void> DirectSink::add_oldest() {
  const int64_t before = crew_.helpers() == 0 ? 0 : options_.clock();
  const CompressionCrew::Extent& e = crew_.oldest();
  CKPT_TRY(add_packed(e, crew_.helpers() == 0 ? e.ns : options_.clock() - before));
  crew_.retired();
  return {};
}

// took: of the writer's time.
Result<void> DirectSink::add_packed(const CompressionCrew::Extent& e, int64_t took) {
  packing_ns_ += took;
  packed_ += e.length;
  if (packed_ >= kBytesLookedAt) consider_helper();
  chunk_packed_ = true;
  const bool packed = e.stored > 0;
  const uint32_t stored = packed ? e.stored : e.length;
  // With helpers at work it is the writer's time that counts. Whether there would be a processor for one is
  // not known before.
  if (options_.adaptive) {
    const bool tried = gauge_.tries_next();
    gauge_.compressed(e.length, stored, (crew_.helpers() > 0 ? took : e.ns) + gathering_ns_,
                      took + gathering_ns_);
    gathering_ns_ = 0;
    if (tried && !gauge_.tries_next()) pace_.set(e.acceleration);
  }
  const Codec codec = packed ? options_.codec : Codec::kNone;
  const std::span<const std::byte> bytes(packed ? e.packed : e.raw, round_up_to_block(stored));
  auto repeated =
      list_repeated({e.address, e.length, stored, e.checksum, static_cast<uint32_t>(codec), 0}, bytes);
  if (!repeated.ok()) return repeated.error();
  if (*repeated) return {};
  CKPT_TRY(make_room(static_cast<uint32_t>(bytes.size())));
  if (bytes.data() != chunk_.next_body()) std::memcpy(chunk_.next_body(), bytes.data(), stored);
  const uint64_t offset = offset_ + chunk_.next_offset();
  return list_extent(chunk_.add(e.address, e.length, stored, codec, &e.checksum), offset, bytes);
}

// Of the extent that is compressed next.
void DirectSink::set_pace() {
  crew_.accelerate(options_.adaptive && gauge_.tries_next() && gauge_.tries_quickest()
                       ? pace_.most()
                       : pace_.acceleration());
}

void DirectSink::chunk_handed_over(uint32_t bytes) {
  const int64_t now = options_.clock();
  if (options_.adaptive) {
    // What helpers still have and will be found repeated is told already.
    gauge_.wrote(bytes, memory_bytes_ - std::min(memory_told_, memory_bytes_), now - chunk_began_ns_,
                 waited_ns_);
    memory_told_ = memory_bytes_;
  }
  if (chunk_packed_) pace_.wrote(now - chunk_began_ns_, waited_ns_);
  chunk_packed_ = false;
  chunk_began_ns_ = now;
  waited_ns_ = 0;
}

// Has the writer hardly done anything else? Then neither memory that arrives nor the device holds it up, and
// a helper pays. Else it would only change places with the others on the processors that the program leaves.
void DirectSink::consider_helper() {
  const int64_t now = options_.clock();
  if (packing_ns_ > (now - packing_since_ns_) / 4 * 3) crew_.add_helper();
  packing_since_ns_ = now;
  packing_ns_ = 0;
  packed_ = 0;
}

}  // namespace ckpt
