// The writing half's contract with the checkpoint: where copied segments go.
//
// Owner:     image/write. One ImageSink is one image being written.
// Callers:   one thread at a time, inside the victim: no libc that allocates, locks or writes libc's state;
//            memory only from the Arena given at open().
// Order:     open; set_meta once, inherit and append, mixed; commit. Or abort at any moment after open.
//
// Increments. A full image holds every page that is not zero. An increment names its parent in
// ImageIdentity::parent, and says of each page that exists at the stop one of two things:
//   - not written since the parent's stop: inherit(). Its contents come from the parent, which may itself
//     inherit it; no matter whether it is zero.
//   - written since, new, or moved here: append(), unless it is zero.
// If neither is said of a page, nothing of it is taken from the parent: that is how munmap, madvise and
// pages that became zero are told. A page that was not present before and is zero now needs no word.
//     sink.open(dir, name, {run_id, sequence, realtime_ns, parent}, …);
//     sink.inherit(runs_of_pages_that_were_not_written);
//     sink.append(copies_of_the_others);  sink.set_meta(…);
//     auto stats = sink.commit();   parent = stats->as_parent;    for the next one
// When to make a full image instead: chain_may_grow() and parent_is_whole() of image_directory.h.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/memory/copied_segment.h"
#include "base/result.h"
#include "base/units.h"
#include "image/format/image_format.h"

namespace ckpt {

// The sink calls it, on the thread that called append/commit/abort, when a buffer's bytes are no longer
// needed. The bytes are then on their way to the device and will not be read from the buffer again.
using ReleaseBuffer = void (*)(void* context, uint32_t buffer);

struct ImageIdentity {
  uint8_t run_id[16];   // one run of one program, kept over restarts
  uint64_t sequence;    // from 1
  int64_t realtime_ns;  // when it was requested
  ParentImage parent;   // SinkStats::as_parent of the image this is an increment to; all zero: full
};

struct SinkStats {
  uint64_t bytes_memory = 0;   // pages of memory in the image, bytes
  uint64_t bytes_written = 0;  // bytes in the file
  ParentImage as_parent{};     // this image, for an increment to it
};

class ImageSink {
 public:
  // Creates "<name>.tmp" in directory dir_fd, mode 0600, exclusively, following no link.
  virtual Result<void> open(int dir_fd, const char* name, const ImageIdentity& identity, Arena& arena,
                            ReleaseBuffer release, void* context) = 0;
  // The META section; called once before commit: before, between or after appends.
  virtual Result<void> set_meta(std::span<const std::byte> meta) = 0;
  // Increments only: pages that are as in the parent. In any order, in any number of calls, none twice,
  // none that is appended too: commit() fails otherwise.
  virtual Result<void> inherit(std::span<const AddrRange> runs) = 0;
  virtual Result<void> append(std::span<const CopiedSegment> segments) = 0;
  // Waits for all writes, writes index and trailer, fsync file, rename to name, fsync directory.
  virtual Result<SinkStats> commit() = 0;
  // Removes the temporary file. Releases every buffer.
  virtual void abort() = 0;

 protected:
  ~ImageSink() = default;
};

}  // namespace ckpt
