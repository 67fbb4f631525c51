#include "image/write/sink/memory_writer.h"

#include <algorithm>
#include <cstring>

#include "base/memory/page_runs.h"
#include "image/format/checksum.h"
#include "base/preload_rules.h"

namespace ckpt {

Result<void> MemoryWriter::start_crew(const SinkOptions& options, Arena& arena, ReleaseBuffer release,
                                      void* context) {
  options_ = &options;
  extent_ = {};
  memory_bytes_ = 0;
  return crew_.start(options.codec, options.level, options.helpers, arena, release, context);
}

Result<void> MemoryWriter::start(Arena& arena, ReleaseBuffer release, void* context) {
  crew_holds_ = options_->codec == Codec::kLz4 && crew_.most_helpers() > 0 &&
                options_->held_buffers >= crew_.most_extents();
  // Pages that are changed on their way are in a buffer of ours. Adaptive: most are not.
  const bool as_they_are = !options_->compressing() || options_->adaptive;
  if (!as_they_are || !slots_.gathers()) return {};
  return chunks_.start_holding(options_->held_buffers - (crew_holds_ ? crew_.most_extents() : 0), release,
                               context, arena);
}

Result<void> MemoryWriter::add(const CopiedSegment& segment, bool* held) {
  if (packs_held(segment)) return pack_held(segment, held);
  if (!chunks_.holds()) return add_segment(segment);
  if (extent_.active && extent_.pack) {
    if (goes_on(segment)) return add_segment(segment);
    CKPT_TRY(close_extent());  // what it gave decides about the next
  }
  return plan_.packs_next() ? add_segment(segment) : add_held(segment, held);
}

Result<void> MemoryWriter::add_segment(const CopiedSegment& segment) {
  for (PageRun run : PageRuns(segment.page_mask)) {
    CKPT_TRY(add_run((segment.base + run.offset()).value, segment.data + run.offset(), run.bytes(), true));
  }
  return {};
}

Result<void> MemoryWriter::add_run(uint64_t address, const std::byte* data, uint64_t bytes, bool may_pack) {
  while (bytes > 0) {
    if (extent_.active && (extent_.address + extent_.length != address || extent_.length == extent_.limit)) {
      CKPT_TRY(close_extent());
    }
    if (!extent_.active) {
      const uint32_t whole = packed_limit(address);
      if (may_pack && packs_in_place() && bytes >= whole && plan_.packs_next()) {
        CKPT_TRY(pack_in_place(address, data, whole));
        address += whole;
        data += whole;
        bytes -= whole;
        continue;
      }
      CKPT_TRY(open_extent(address, may_pack));
    }
    uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(bytes, extent_.limit - extent_.length));
    const bool only_to_pack = chunks_.holds() && extent_.pack;
    const int64_t before = only_to_pack ? options_->clock() : 0;
    std::memcpy(extent_.bytes + extent_.length, data, n);
    if (only_to_pack) plan_.gathered(options_->clock() - before);
    extent_.length += n;
    count(n);
    address += n;
    data += n;
    bytes -= n;
  }
  return {};
}

// Uncompressed pages are gathered where they will be written from; others go through the crew.
Result<void> MemoryWriter::open_extent(uint64_t address, bool may_pack) {
  if (may_pack && plan_.packs_next()) {
    if (crew_.full()) CKPT_TRY(add_oldest());
    crew_.accelerate(plan_.acceleration());
    extent_ = {true, true, address, 0, packed_limit(address), crew_.raw()};
    return {};
  }
  plan_.left_alone();
  // Where repeated ones are looked for, no extent is cut short by a chunk's end: it would not be like its
  // equals.
  const uint64_t whole = kExtentBytes - address % kExtentBytes;
  CKPT_TRY(chunks_.make_room(stored_.looks_for_repeated() && whole <= chunks_.most_body()
                                 ? static_cast<uint32_t>(whole)
                                 : kPageSize));
  uint32_t limit = static_cast<uint32_t>(std::min<uint64_t>(chunks_.chunk().room(), whole));
  extent_ = {true, false, address, 0, limit, chunks_.chunk().next_body()};
  return {};
}

Result<void> MemoryWriter::close_extent() {
  if (!extent_.active) return {};
  extent_.active = false;
  if (extent_.pack) {
    crew_.submit(extent_.address, extent_.length);
    // Nobody else works on it: no use in waiting.
    return crew_.helpers() == 0 ? add_oldest() : Result<void>();
  }
  const std::span<const std::byte> bytes(extent_.bytes, extent_.length);
  const uint64_t checksum = checksum_of(bytes);
  auto repeated = list_repeated({extent_.address, extent_.length, extent_.length, checksum, 0, 0}, bytes);
  if (!repeated.ok()) return repeated.error();
  if (*repeated) return {};
  const uint64_t offset = chunks_.next_offset();
  return stored_.list(
      chunks_.chunk().add(extent_.address, extent_.length, extent_.length, Codec::kNone, &checksum), offset,
      bytes);
}

Result<void> MemoryWriter::close() {
  CKPT_TRY(close_extent());
  while (!crew_.empty()) CKPT_TRY(add_oldest());
  return {};
}

Result<bool> MemoryWriter::list_repeated(const ExtentEntry& extent, std::span<const std::byte> bytes) {
  auto listed = stored_.list_repeated(extent, bytes, slots_);
  if (listed.ok() && *listed) plan_.repeated(extent.length);
  return listed;
}

}  // namespace ckpt
