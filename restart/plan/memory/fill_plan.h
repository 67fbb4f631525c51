// Which bytes of the images go where before the program runs, in the order in which they are read.
//
// Owner:     restart. Callers: ckpt-restart builds the plan before the new process exists, so that both have
//            the same: the Feeder reads, checks and unpacks a batch, the restorer copies it to its places.
#pragma once

#include <functional>
#include <vector>

#include "image/read/image_chain.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {

// Contiguous bytes of a file, and where they come to lie in what is read for the batch.
struct FillRead {
  uint64_t offset, bytes, at;
};

// An extent of a batch.
struct FeedExtent {
  uint32_t extent;     // as in MemoryPiece
  uint64_t at;         // bytes into the batch: where its memory comes to lie
  uint64_t stored_at;  // bytes into what is read
};

// What is read at once, checked, and handed over together: of one file, front to back. Of an image that
// others replace in part a batch is many reads, but not a smaller batch: to hand one over costs more than to
// read it.
struct FillBatch {
  uint32_t image;              // of the chain
  bool packed;                 // unpacked one behind the other; else all lie in the batch as they are read
  uint64_t stored;             // bytes that are read
  uint64_t memory;             // bytes of the batch
  uint64_t first_read, reads;  // of FillPlan::reads
  uint64_t first_extent, extents;  // of FillPlan::extents
  uint64_t first_fill, fills;      // of FillPlan::fills; none: it is only checked
  uint64_t puts;                   // the last of these fills, which the Feeder may put there itself
};

struct FillPlan {
  std::vector<FillBatch> batches;
  std::vector<FillRead> reads;
  std::vector<FeedExtent> extents;
  std::vector<RestorerFill> fills;
  uint64_t bytes = 0;          // that are filled in
  uint64_t largest_batch = 0;  // bytes of memory
  bool all = false;  // every byte of the (full) image is checked on the way, whether it is wanted or not
  std::vector<uint32_t> filled;  // per mapping of the image: 1 when something goes into it
  std::vector<uint32_t> put;     // the same: 1 when the Feeder may put it there, 0: the restorer copies
  bool puts = false;             // some are

  bool any() const { return !batches.empty(); }
};

// How many reads a batch may have.
inline constexpr uint64_t kMostReads = 64;

// wanted(i): does mapping i of the image take its bytes from the image? all: the image is a full one, and
// each of its extents is checked.
FillPlan make_fill_plan(const ImageChain& image, bool all, const std::function<bool(uint32_t)>& wanted);

}  // namespace ckpt
