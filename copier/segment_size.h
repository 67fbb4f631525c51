// The size of segments where CKPT_SEGMENT is auto: chosen for each checkpoint from the size of memory and
// from what was seen in the last one.
//
// A forced copy costs its thread about 10 µs whatever the size, for the fault and the wake-up, and 1 µs for
// each 16 KiB; a copy in order costs 5 µs and as much. So:
//   - the first checkpoint has 64 KiB;
//   - where more than a quarter of all copies were forced, threads write everywhere, and each neighbour that
//     is copied along saves a fault: twice the size;
//   - where less than one copy in 32 was forced, a thread that waits has written to one place: half the size,
//     so that it waits for less;
//   - at most 1,048,576 segments, as long as there is a larger size. At least 4 KiB; at most 256 KiB (the
//     pages that Segment::present can name), and at most a sixteenth of the pool.
// With increments the size of the first checkpoint stays: what is protected from one checkpoint to the next
// is known by segment.
//
// Owner:     copier. Header only, no state. Callers: the agent, at the beginning and at the end of a
//            checkpoint.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace ckpt {

inline constexpr uint64_t kUsualSegment = 64 << 10, kSmallestSegment = kPageSize,
                          kLargestSegment = 64 * kPageSize;

// Within the bounds for that much memory and pool, in bytes.
constexpr uint64_t bounded_segment(uint64_t bytes, uint64_t memory, uint64_t pool) {
  constexpr uint64_t kMostSegments = 1 << 20;
  while (bytes < kLargestSegment && memory / bytes > kMostSegments) bytes *= 2;
  while (bytes > kSmallestSegment && 16 * bytes > pool) bytes /= 2;
  return bytes;
}

// After a checkpoint with segments of `bytes`, of which so many were copied by force and so many in order.
constexpr uint64_t next_segment(uint64_t bytes, uint64_t forced, uint64_t in_order) {
  const uint64_t all = forced + in_order;
  if (all == 0) return bytes;
  if (forced >= all / 4 + 1) return bytes < kLargestSegment ? bytes * 2 : bytes;
  if (forced < all / 32) return bytes > kSmallestSegment ? bytes / 2 : bytes;
  return bytes;
}

}  // namespace ckpt
