// The ImageSink that writes an image file: gathers copied pages into extents and chunks of about
// 1 MiB in its own staging buffers and writes them with O_DIRECT, several in flight.
//
// Owner:     writer. One DirectSink at a time per image; may be opened again after commit or abort.
// Callers:   one thread (the writer thread), in the victim, with all signals blocked (SIGXFSZ too).
// Memory:    staging, index and compressor in the arena of open(); arena_bytes() says how much.
// Buffers:   append() copies: it has released every buffer of its segments when it returns, also on
//            failure. So a pool of any size is enough, and nothing is held while the device is slow. After
//            hold_buffers() long runs of pages are written from where they are, without a copy, and so many
//            buffers at most are kept until they are written, or abort() was called. So are, with helpers,
//            those of whole extents that lz4 compresses.
// Pages:     each page at most once in an image; commit() fails if one came twice. Segments may come
//            in any order; address order makes the longest extents. An extent joins neighbouring
//            pages of different mappings: a reader must split it where it cares.
// Failure:   the first error is kept and returned by every later call; abort() (also called by a
//            failing commit()) removes the temporary file. Nothing is ever left under the final name.
#pragma once

#include "base/clock.h"
#include "base/raii_fd.h"
#include "base/settings.h"
#include "image/write/backend/pwritev_backend.h"
#include "image/write/backend/uring_backend.h"
#include "image/write/backend/write_queue.h"
#include "image/write/chunk_builder.h"
#include "image/write/compress/compression_crew.h"
#include "image/write/compress/compression_gauge.h"
#include "image/write/held_buffers.h"
#include "image/write/image_file.h"
#include "image/write/image_sealer.h"
#include "image/write/image_sink.h"
#include "image/write/repeated_segments.h"

namespace ckpt {

struct SinkOptions {
  Codec codec = Codec::kNone;
  int level = 1;          // of zstd
  bool adaptive = false;  // compress only where that is sooner (compression_gauge.h)
  CompressionKnowledge* knowledge =
      nullptr;  // of the images before, and of this one when it is committed; nullptr: none is kept
  FileBackend* backend = nullptr;  // nullptr: the fastest that works here
  ImageOutput* output = nullptr;   // ready to be written to; nullptr: a file of the directory given to open()
  HelperThreads* helpers = nullptr;  // for compression, as many as pay; nullptr: none
  const ImageKey* key = nullptr;     // encrypt with it; it must outlive the image
  bool direct = true;                // try O_DIRECT
  bool uring = true;                 // try io_uring, where O_DIRECT is in effect
  uint32_t chunk_bytes = 1u << 20;   // of a whole chunk, a multiple of 4096
  uint32_t head_bytes = kBlockSize;
  uint32_t in_flight = 4;                        // chunks
  size_t held_buffers = 0;                       // see DirectSink::hold_buffers()
  bool replace = false;                          // an image of this name, in one step, instead of refusing to
  int64_t (*clock)() = [] { return now_ns(); };  // of gauge and pace
};

// codec, level and adaptive, as a setting says it.
void set_compression(SinkOptions& options, const CompressionSetting& setting);

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

  // Before open(): encrypt with it. It must outlive the image.
  void set_key(const ImageKey* key) { options_.key = key; }

  // Before open(): what is appended stays as it is until it is released, which may be later than append().
  // Where that is of use (pages are not always changed on their way, and the output can gather them) at most
  // so many are held at a time.
  void hold_buffers(size_t most) { options_.held_buffers = most; }

  // Appended so far, bytes.
  uint64_t memory_bytes() const { return memory_bytes_; }
  // "io_uring", "pwritev"; also after commit or abort.
  const char* backend_name() const { return backend_ != nullptr ? backend_->name() : "none"; }
  // Writes that io_uring could not start at once and that were made by pwritev instead.
  uint64_t writes_done_here() const { return uring_.done_here(); }
  // Mappings that the sink made outside the arena while it is open ("anon_inode:[io_uring]"): whoever
  // reads the program's maps meanwhile takes them for ours. Empty ranges when there are none.
  struct OwnMappings {
    AddrRange ranges[2];
  };
  OwnMappings own_mappings() const { return {{uring_.ring_range(), uring_.entries_range()}}; }

 private:
  // Uncompressed extents, and those of lz4, end at multiples of this: when increments replace part of an
  // image's memory, what is left of it can be checked and read without the rest. Segments are not larger.
  static constexpr uint64_t kExtentBytes = 64u << 10;

  Result<void> open_all(int dir_fd, const char* name, const ImageIdentity& identity, Arena& arena);
  Result<void> start_queue(Arena& arena);
  Result<void> write_header(const ImageIdentity& identity);
  Result<void> add(const CopiedSegment& segment, bool* held);
  Result<void> add_segment(const CopiedSegment& segment);
  Result<void> add_held(const CopiedSegment& segment, bool* held);
  Result<void> add_run(uint64_t address, const std::byte* data, uint64_t bytes, bool may_pack);
  Result<void> open_extent(uint64_t address, bool may_pack);
  Result<void> close_extent();
  uint32_t packed_limit(uint64_t address) const;
  // What is read twice must not change meanwhile: lz4 refers back to bytes that it has read before.
  bool packs_in_place() const {
    return options_.codec == Codec::kLz4 && crew_.helpers() == 0 && options_.held_buffers != 0;
  }
  bool goes_on(const CopiedSegment& segment) const;
  bool packs_held(const CopiedSegment& segment) const;
  Result<void> pack_held(const CopiedSegment& segment, bool* held);
  Result<void> pack_in_place(uint64_t address, const std::byte* data, uint32_t length);
  Result<void> add_oldest();
  Result<void> add_packed(const CompressionCrew::Extent& extent, int64_t took);
  void consider_helper();
  Result<void> close_all_extents();
  Result<bool> list_repeated(const ExtentEntry& entry, std::span<const std::byte> bytes);
  Result<void> list_extent(const ExtentEntry& entry, uint64_t offset, std::span<const std::byte> bytes);
  Result<void> list_entry(const IndexEntry& entry);
  bool compressing() const { return options_.codec != Codec::kNone; }
  // Is the time measured that the device is waited for?
  bool is_measured() const { return options_.adaptive || options_.codec == Codec::kLz4; }
  void set_pace();
  void chunk_handed_over(uint32_t bytes);
  bool packs_next() const { return compressing() && (!options_.adaptive || gauge_.compress_next()); }
  Result<void> make_room(uint32_t bytes);
  Result<uint32_t> acquire_slot();
  std::byte* slot_buffer(uint32_t slot) { return options_.key != nullptr ? plain_ : queue_.buffer(slot); }
  Result<void> flush_chunk();
  Result<void> write_slot(uint32_t slot, uint32_t bytes, bool last = false, uint32_t pieces = 0);
  Result<void> write_section(SectionKind kind, uint32_t entries, std::span<const std::byte> content,
                             uint64_t* checksum);
  Result<void> write_inherited();
  Result<void> write_index();
  Error copied_twice(uint64_t address) const;
  ParentImage as_parent() const;
  Result<SinkStats> commit_all();
  Result<void> keep(Result<void> result);

  struct OpenExtent {
    bool active;
    bool pack;  // gathered for the crew, to be compressed
    uint64_t address;
    uint32_t length, limit;
    std::byte* bytes;
  };

  SinkOptions options_;
  PwritevBackend pwritev_;
  UringBackend uring_;
  FileBackend* backend_ = nullptr;
  ImageFile file_;
  ImageOutput* output_ = &file_;
  WriteQueue queue_;
  ChunkBuilder chunk_;
  CompressionCrew crew_;
  RepeatedSegments repeated_;
  CompressionGauge gauge_;
  CompressionPace pace_;
  int64_t chunk_began_ns_ = 0, waited_ns_ = 0;  // for gauge and pace: since the last chunk
  bool chunk_packed_ = false;                   // something was compressed since the last chunk
  int64_t gathering_ns_ = 0;  // copies that only compression needs, since the last extent that was
  // Compression, since it was asked whether a helper pays: bytes, what they took of the writer's time, and
  // when.
  uint32_t packed_ = 0;
  int64_t packing_ns_ = 0, packing_since_ns_ = 0;
  uint64_t memory_told_ = 0;  // bytes of memory that the gauge knows of
  ArenaVector<IndexEntry> index_;
  ArenaVector<InheritedRun> inherited_;
  ReleaseBuffer release_ = nullptr;
  void* context_ = nullptr;
  bool open_ = false, has_meta_ = false, failed_ = false;
  Error error_;
  uint32_t chunk_slot_ = 0;
  HeldBuffers held_;
  bool crew_holds_ = false;
  ImageSealer sealer_;
  std::byte* plain_ = nullptr;  // encryption: what is gathered, before it goes to the sealer
  OpenExtent extent_ = {};
  uint64_t offset_ = 0;  // in the file, of what is written next
  uint64_t sections_ = 0, chunks_ = 0, memory_bytes_ = 0;
  uint64_t repeated_bytes_ = 0;  // that need not be stored again
  ParentImage parent_ = {};
  ImageName name_;
  FileTrailer trailer_ = {};
};

}  // namespace ckpt
