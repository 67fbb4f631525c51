// The part of DirectSink that writes segments from where they are.
#include <algorithm>
#include <bit>

#include "base/page_runs.h"
#include "image/format/checksum.h"
#include "image/format/io_error.h"
#include "image/write/direct_sink.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// Runs of pages shorter than this are copied to their neighbours: an entry of the index and a piece of a
// request cost more.
constexpr uint32_t kWorthHolding = 32u << 10;

}  // namespace

// All of a segment goes into one chunk, so that its buffer is released with that; none of it is compressed:
// that would need room in a chunk, for what was to be compressed before too.
Result<void> DirectSink::add_held(const CopiedSegment& segment, bool* held) {
  const uint64_t mask = segment.page_mask;
  const uint32_t runs = PageRuns(mask).count();
  const auto bytes = static_cast<uint32_t>(std::popcount(mask)) * static_cast<uint32_t>(kPageSize);
  const uint32_t extents =
      runs + static_cast<uint32_t>(64 * kPageSize / kExtentBytes);  // a run is cut at each such address
  // Short runs between the long ones begin extents in the buffer, for which there must be room for a whole
  // one (open_extent).
  const uint32_t room = bytes + (runs == 1 ? 0 : static_cast<uint32_t>(kExtentBytes));
  if (bytes < kWorthHolding || room + options_.head_bytes > queue_.slot_bytes()) return add_segment(segment);
  CKPT_TRY(close_extent());
  // With one run all of it is held: it is long enough.
  if (!chunk_.active() || !chunk_.has_room(extents, room, runs == 1)) {
    CKPT_TRY(flush_chunk());
    CKPT_TRY(make_room(room));
  }
  if (held_.full(chunk_slot_) || !chunk_.has_room(extents, room, runs == 1)) return add_segment(segment);
  const uint32_t chunk = chunk_slot_;
  for (PageRun run : PageRuns(mask)) {
    uint64_t address = (segment.base + run.offset()).value;
    const std::byte* data = segment.data + run.offset();
    uint64_t rest = run.bytes();
    if (rest < kWorthHolding) {
      CKPT_TRY(add_run(address, data, rest, false));
      continue;
    }
    CKPT_TRY(close_extent());
    for (uint32_t n; rest > 0; address += n, data += n, rest -= n) {
      n = static_cast<uint32_t>(std::min<uint64_t>(rest, kExtentBytes - address % kExtentBytes));
      memory_bytes_ += n;
      gauge_.left_alone();
      const std::span<const std::byte> bytes_of(data, n);
      const uint64_t checksum = checksum_of(bytes_of);
      auto repeated =
          list_repeated({address, n, n, checksum, static_cast<uint32_t>(Codec::kNone), 0}, bytes_of);
      if (!repeated.ok()) return repeated.error();
      if (*repeated) continue;
      // The buffer would be given back with the first of two chunks.
      if (chunk_slot_ != chunk)
        return make_error(ExitCode::kInternal, 0, "a segment of {} came into two chunks",
                          shown_path(output_->path()).text);
      const uint64_t offset = offset_ + chunk_.next_offset();
      if (!*held) {
        held_.add(chunk_slot_, segment.buffer);
        *held = true;
      }
      CKPT_TRY(list_extent(chunk_.add_held(address, data, n, checksum), offset, bytes_of));
    }
  }
  return {};
}

}  // namespace ckpt
