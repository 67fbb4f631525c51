// The part of MemoryWriter that writes segments from where they are.
#include <algorithm>
#include <bit>

#include "base/memory/page_runs.h"
#include "image/format/checksum.h"
#include "image/format/io_error.h"
#include "image/write/sink/memory_writer.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// Runs of pages shorter than this are copied to their neighbours: an entry of the index and a piece of a
// request cost more.
constexpr uint32_t kWorthHolding = 32u << 10;

}  // namespace

// All of a segment goes into one chunk, so that its buffer is released with that; none of it is compressed:
// that would need room in a chunk, for what was to be compressed before too.
Result<void> MemoryWriter::add_held(const CopiedSegment& segment, bool* held) {
  const uint64_t mask = segment.page_mask;
  const uint32_t runs = PageRuns(mask).count();
  const auto bytes = static_cast<uint32_t>(std::popcount(mask)) * static_cast<uint32_t>(kPageSize);
  const uint32_t extents =
      runs + static_cast<uint32_t>(64 * kPageSize / kExtentBytes);  // a run is cut at each such address
  // Short runs between the long ones begin extents in the buffer, for which there must be room for a whole
  // one (open_extent).
  const uint32_t room = bytes + (runs == 1 ? 0 : static_cast<uint32_t>(kExtentBytes));
  if (bytes < kWorthHolding || room > chunks_.most_body()) return add_segment(segment);
  CKPT_TRY(close_extent());
  ChunkBuilder& chunk = chunks_.chunk();
  // With one run all of it is held: it is long enough.
  if (!chunk.active() || !chunk.has_room(extents, room, runs == 1)) {
    CKPT_TRY(chunks_.flush());
    CKPT_TRY(chunks_.make_room(room));
  }
  if (chunks_.holds_enough() || !chunk.has_room(extents, room, runs == 1)) return add_segment(segment);
  const uint32_t slot = chunks_.slot();
  for (PageRun run : PageRuns(mask)) {
    const uint64_t address = (segment.base + run.offset()).value;
    const std::byte* data = segment.data + run.offset();
    if (run.bytes() < kWorthHolding) {
      CKPT_TRY(add_run(address, data, run.bytes(), false));
      continue;
    }
    CKPT_TRY(close_extent());
    CKPT_TRY(hold_run(segment, address, data, run.bytes(), slot, held));
  }
  return {};
}

// slot: of the chunk that the segment goes into.
Result<void> MemoryWriter::hold_run(const CopiedSegment& segment, uint64_t address, const std::byte* data,
                                    uint64_t rest, uint32_t slot, bool* held) {
  for (uint32_t n; rest > 0; address += n, data += n, rest -= n) {
    n = static_cast<uint32_t>(std::min<uint64_t>(rest, kExtentBytes - address % kExtentBytes));
    count(n);
    plan_.left_alone();
    const std::span<const std::byte> bytes(data, n);
    const uint64_t checksum = checksum_of(bytes);
    auto repeated = list_repeated({address, n, n, checksum, static_cast<uint32_t>(Codec::kNone), 0}, bytes);
    if (!repeated.ok()) return repeated.error();
    if (*repeated) continue;
    // The buffer would be given back with the first of two chunks.
    if (chunks_.slot() != slot)
      return make_error(ExitCode::kInternal, 0, "a segment of {} came into two chunks",
                        shown_path(slots_.path()).text);
    const uint64_t offset = chunks_.next_offset();
    if (!*held) {
      chunks_.hold(segment.buffer);
      *held = true;
    }
    CKPT_TRY(stored_.list(chunks_.chunk().add_held(address, data, n, checksum), offset, bytes));
  }
  return {};
}

}  // namespace ckpt
