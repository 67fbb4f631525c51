// The ImageSink that writes an image file: gathers copied pages into extents and chunks of about
// 1 MiB in its own staging buffers and writes them with O_DIRECT, several in flight.
//
// Owner:     image/write. One DirectSink at a time per image; may be opened again after commit or abort.
// Callers:   the sink's thread, one at a time: the agent, or the child of mode fork; append() may be the
//            writer thread's. In the victim, with all signals blocked (SIGXFSZ too).
// Memory:    staging, index and compressor in the arena of open(); arena_bytes() says how much.
// Buffers:   append() copies: it has released every buffer of its segments when it returns, also on
//            failure. So a pool of any size is enough, and nothing is held while the device is slow. After
//            hold_buffers() long runs of pages are written from where they are, without a copy, and so many
//            buffers at most are kept until they are written, or abort() was called. So are, with helpers,
//            those of whole extents that lz4 compresses.
// Pages:     each page at most once in an image; commit() fails if one came twice. Segments may come
//            in any order; address order makes the longest extents. An extent joins neighbouring
//            pages of different mappings: a reader must split it where it cares.
// Parts:     each has one job, in image/write/sink/ and compress/; DirectSink opens and closes them, in
//            order:
//   MemoryWriter      segments become extents: gathered, held or compressed
//     CompressionPlan   is the next extent compressed, how hard, with how many helpers
//     StoredExtents     index, inherited runs, what is repeated
//     ChunkWriter       the chunk that is being filled, and the buffers that it holds
//   SectionWriter     header, META, INHERITED, INDEX, trailer
//   SlotWriter        bytes in order to the output, encrypted where there is a key
// Failure:   the first error is kept and returned by every later call; abort() (also called by a
//            failing commit()) removes the temporary file. Nothing is ever left under the final name.
#pragma once

#include "base/raii_fd.h"
#include "image/write/image_file.h"
#include "image/write/image_sink.h"
#include "image/write/sink/memory_writer.h"
#include "image/write/sink_options.h"

namespace ckpt {

class DirectSink final : public ImageSink {
 public:
  explicit DirectSink(const SinkOptions& options = {}) : options_(options) {}
  ~DirectSink() { abort(); }
  DirectSink(const DirectSink&) = delete;
  DirectSink& operator=(const DirectSink&) = delete;

  // Capacity for Arena::reserve for an image of up to `memory_bytes` of pages, inherited ones included, in
  // the worst case: each alone. Only what is used is touched: a few MiB and 40 bytes for each extent.
  static size_t arena_bytes(const SinkOptions& options, uint64_t memory_bytes);

  Result<void> open(int dir_fd, const char* name, const ImageIdentity& identity, Arena& arena,
                    ReleaseBuffer release, void* context) override;
  Result<void> set_meta(std::span<const std::byte> meta) override;
  Result<void> inherit(std::span<const AddrRange> runs) override;
  Result<void> append(std::span<const CopiedSegment> segments) override;
  Result<SinkStats> commit() override;
  void abort() override;

  // Before open(): encrypt with it. The key must outlive the image.
  void set_key(const ImageKey* key) { options_.key = key; }

  // Before open(): what is appended stays as it is until it is released, which may be later than append().
  // Holding is of use where pages are not always changed on their way, and the output can gather them. At
  // most so many are held at a time.
  void hold_buffers(size_t most) { options_.held_buffers = most; }

  // Appended so far, bytes.
  uint64_t memory_bytes() const { return memory_.memory_bytes(); }
  // "io_uring", "pwritev"; also after commit or abort.
  const char* backend_name() const { return slots_.backend() != nullptr ? slots_.backend()->name() : "none"; }
  // Writes that io_uring could not start at once and that were made by pwritev instead.
  uint64_t writes_done_here() const { return slots_.uring().done_here(); }
  // Mappings that the sink made outside the arena while it is open ("anon_inode:[io_uring]"): whoever
  // reads the program's maps meanwhile takes them for ours. Empty ranges when there are none.
  struct OwnMappings {
    AddrRange ranges[2];
  };
  OwnMappings own_mappings() const { return {{slots_.uring().ring_range(), slots_.uring().entries_range()}}; }

 private:
  Result<void> open_all(int dir_fd, const char* name, const ImageIdentity& identity, Arena& arena);
  Result<SinkStats> commit_all();
  ParentImage as_parent() const;
  // Remembers the first failure, which commit() returns, and returns it again for each later one.
  Result<void> note_failure(Result<void> result);

  SinkOptions options_;
  ImageFile file_;
  ImageOutput* output_ = &file_;
  SlotWriter slots_;
  SectionWriter sections_{slots_};
  CompressionPlan plan_;
  StoredExtents stored_;
  ChunkWriter chunks_{slots_, sections_, plan_};
  MemoryWriter memory_{slots_, chunks_, stored_, plan_};
  ReleaseBuffer release_ = nullptr;
  void* context_ = nullptr;
  bool open_ = false, has_meta_ = false, failed_ = false;
  Error error_;
  ParentImage parent_ = {};
  ImageName name_;
};

}  // namespace ckpt
