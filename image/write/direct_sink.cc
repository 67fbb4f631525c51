#include "image/write/direct_sink.h"

#include <errno.h>

#include <algorithm>

#include "base/named_points.h"
#include "base/page_runs.h"
#include "image/format/checksum.h"
#include "image/format/io_error.h"
#include "base/preload_rules.h"

namespace ckpt {

void set_compression(SinkOptions& options, const CompressionSetting& setting) {
  const Compression kind = setting.kind;
  options.codec = kind == Compression::kNone   ? Codec::kNone
                  : kind == Compression::kZstd ? Codec::kZstd
                                               : Codec::kLz4;
  options.level = setting.level;
  options.adaptive = kind == Compression::kAuto;
}

size_t DirectSink::arena_bytes(const SinkOptions& options, uint64_t memory_bytes) {
  // Each page may have no neighbour: an extent, or an inherited run, which is smaller.
  const size_t entries = memory_bytes / kPageSize + 64;
  // A vector has room for up to twice of what is in it, and leaves its former blocks behind when it grows:
  // together less than the last one.
  const size_t index = entries * sizeof(IndexEntry) * 4;
  static_assert(sizeof(InheritedRun) <= sizeof(IndexEntry));
  // With a key: what is gathered, and what is encrypted from it.
  size_t staging =
      (size_t{options.in_flight} + 1) * options.chunk_bytes + HeldBuffers::arena_bytes(options.in_flight);
  return staging + index + RepeatedSegments::arena_bytes() +
         CompressionCrew::arena_bytes(options.codec, options.level, options.helpers) + (1u << 20);
}

Result<void> DirectSink::keep(Result<void> result) {
  if (result.ok()) return result;
  if (!failed_) error_ = open_ ? output_->explain(result.error()) : result.error();
  failed_ = true;
  return error_;
}

Result<void> DirectSink::open(int dir_fd, const char* name, const ImageIdentity& identity, Arena& arena,
                              ReleaseBuffer release, void* context) {
  release_ = release;
  context_ = context;
  failed_ = has_meta_ = false;
  chunk_.forget();
  extent_ = {};
  offset_ = sections_ = chunks_ = memory_bytes_ = repeated_bytes_ = 0;
  index_ = ArenaVector<IndexEntry>(arena);
  inherited_ = ArenaVector<InheritedRun>(arena);
  parent_ = identity.parent;
  trailer_ = {};
  auto result = keep(open_all(dir_fd, name, identity, arena));
  if (!result.ok()) abort();
  return result;
}

Result<void> DirectSink::open_all(int dir_fd, const char* name, const ImageIdentity& identity, Arena& arena) {
  const ParentImage& parent = identity.parent;
  if (parent.sequence != 0 && (parent.sequence >= identity.sequence || parent.chain_length == 0 ||
                               parent.chain_length > kMaxChainLength)) {
    return make_error(ExitCode::kInternal, 0, "image {} cannot be an increment to image {} of a chain of {}",
                      identity.sequence, parent.sequence, parent.chain_length);
  }
  if (options_.output == nullptr) CKPT_TRY(file_.create(dir_fd, name, options_.direct));
  output_ = options_.output != nullptr ? options_.output : &file_;
  std::strncpy(name_.text, name, sizeof(name_.text) - 1);
  open_ = true;
  CKPT_TRY(crew_.start(options_.codec, options_.level, options_.helpers, arena, release_, context_));
  CKPT_TRY(start_queue(arena));
  if (options_.key != nullptr) {
    plain_ = static_cast<std::byte*>(arena.allocate(options_.chunk_bytes, kPageSize));
    if (plain_ == nullptr)
      return make_error(ExitCode::kInternal, ENOMEM, "the arena is too small to encrypt");
    CKPT_TRY(sealer_.start(*options_.key, identity.run_id, queue_, *output_));
  }
  // A stream cannot be read back, and what is encrypted would have to be decrypted for it.
  if (output_ == &file_ && options_.key == nullptr && !repeated_.start(file_.fd(), index_, arena)) {
    return make_error(ExitCode::kInternal, ENOMEM, "the arena is too small to find repeated memory");
  }
  return write_header(identity);
}

Result<void> DirectSink::start_queue(Arena& arena) {
  // Buffered writes are copies into the page cache: io_uring could only hand them to a worker.
  FileBackend* first = options_.uring && output_->direct() ? static_cast<FileBackend*>(&uring_) : &pwritev_;
  FileBackend* second = first == &pwritev_ ? nullptr : &pwritev_;
  if (FileBackend* only = options_.backend != nullptr ? options_.backend : output_->only_backend()) {
    first = only;
    second = nullptr;
  }
  CKPT_TRY(queue_.start(*first, second, output_->fd(), output_->path(), arena, options_.in_flight,
                        options_.chunk_bytes));
  backend_ = queue_.backend();
  if (options_.knowledge != nullptr) {
    gauge_ = options_.knowledge->gauge;
    pace_ = options_.knowledge->pace;
  } else {
    gauge_ = {};
    pace_ = {};
  }
  gauge_.start(backend_->overlaps());
  pace_.start(backend_->overlaps(),
              options_.adaptive ? CompressionPace::kMostForTime : CompressionPace::kMost);
  chunk_packed_ = false;
  chunk_began_ns_ = packing_since_ns_ = options_.clock();
  waited_ns_ = packing_ns_ = gathering_ns_ = 0;
  packed_ = 0;
  memory_told_ = 0;
  crew_holds_ = options_.codec == Codec::kLz4 && crew_.most_helpers() > 0 &&
                options_.held_buffers >= crew_.most_extents();
  // Pages that are changed on their way are in a buffer of ours. Adaptive: most are not.
  const bool as_they_are = (!compressing() || options_.adaptive) && options_.key == nullptr;
  if (!as_they_are || !output_->direct() || !backend_->gathers()) return {};
  CKPT_TRY(held_.start(options_.in_flight, options_.held_buffers - (crew_holds_ ? crew_.most_extents() : 0),
                       release_, context_, arena));
  if (held_.active())
    queue_.on_free([](void* self, uint32_t slot) { static_cast<DirectSink*>(self)->held_.let_go(slot); },
                   this);
  return {};
}

Result<void> DirectSink::write_header(const ImageIdentity& identity) {
  auto slot = acquire_slot();
  if (!slot.ok()) return slot.error();
  auto& header = *reinterpret_cast<FileHeader*>(slot_buffer(*slot));
  header = {};
  std::memcpy(header.magic, kHeaderMagic, sizeof(header.magic));
  header.version = kFormatVersion;
  header.byte_order = kByteOrderMark;
  header.machine = kMachineX86_64;
  header.page_size = kPageSize;
  std::memcpy(header.run_id, identity.run_id, sizeof(header.run_id));
  header.sequence = identity.sequence;
  header.realtime_ns = identity.realtime_ns;
  header.parent = identity.parent;
  header.checksum =
      checksum_of({reinterpret_cast<const std::byte*>(&header), offsetof(FileHeader, checksum)});
  std::memcpy(trailer_.run_id, identity.run_id, sizeof(trailer_.run_id));
  trailer_.sequence = identity.sequence;
  trailer_.image_tag = header.checksum;
  return write_slot(*slot, kBlockSize);
}

Result<void> DirectSink::write_slot(uint32_t slot, uint32_t bytes, bool last, uint32_t pieces) {
  const int64_t before = is_measured() ? options_.clock() : 0;
  if (options_.key != nullptr) {
    CKPT_TRY(sealer_.add({plain_, bytes}, last));
  } else {
    output_->reserve_until(offset_ + bytes);
    CKPT_TRY(pieces != 0 ? queue_.write_pieces(slot, offset_, pieces) : queue_.write(slot, offset_, bytes));
  }
  if (is_measured()) waited_ns_ += options_.clock() - before;
  offset_ += bytes;
  return {};
}

// With a key there is one buffer, free again when it has been encrypted: the slots are the sealer's.
Result<uint32_t> DirectSink::acquire_slot() {
  if (options_.key != nullptr) return uint32_t{0};
  if (!is_measured()) return queue_.acquire();
  const int64_t before = options_.clock();
  auto slot = queue_.acquire();
  waited_ns_ += options_.clock() - before;
  return slot;
}

Result<void> DirectSink::append(std::span<const CopiedSegment> segments) {
  Result<void> result;
  if (failed_) result = error_;
  // What went before, the stop for one, is nobody's waiting.
  if (memory_bytes_ == 0 && is_measured()) chunk_began_ns_ = packing_since_ns_ = options_.clock();
  for (const CopiedSegment& segment : segments) {
    bool held = false;
    if (result.ok()) result = keep(add(segment, &held));
    if (!held) release_(context_, segment.buffer);
  }
  return result;
}

Result<void> DirectSink::add(const CopiedSegment& segment, bool* held) {
  if (packs_held(segment)) return pack_held(segment, held);
  if (!held_.active()) return add_segment(segment);
  if (extent_.active && extent_.pack) {
    if (goes_on(segment)) return add_segment(segment);
    CKPT_TRY(close_extent());  // what it gave decides about the next
  }
  return packs_next() ? add_segment(segment) : add_held(segment, held);
}

Result<void> DirectSink::add_segment(const CopiedSegment& segment) {
  for (PageRun run : PageRuns(segment.page_mask)) {
    CKPT_TRY(add_run((segment.base + run.offset()).value, segment.data + run.offset(), run.bytes(), true));
  }
  return {};
}

Result<void> DirectSink::add_run(uint64_t address, const std::byte* data, uint64_t bytes, bool may_pack) {
  while (bytes > 0) {
    if (extent_.active && (extent_.address + extent_.length != address || extent_.length == extent_.limit)) {
      CKPT_TRY(close_extent());
    }
    if (!extent_.active) {
      const uint32_t whole = packed_limit(address);
      if (may_pack && packs_in_place() && bytes >= whole && packs_next()) {
        CKPT_TRY(pack_in_place(address, data, whole));
        address += whole;
        data += whole;
        bytes -= whole;
        continue;
      }
      CKPT_TRY(open_extent(address, may_pack));
    }
    uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(bytes, extent_.limit - extent_.length));
    const bool only_to_pack = held_.active() && extent_.pack;
    const int64_t before = only_to_pack ? options_.clock() : 0;
    std::memcpy(extent_.bytes + extent_.length, data, n);
    if (only_to_pack) gathering_ns_ += options_.clock() - before;
    extent_.length += n;
    memory_bytes_ += n;
    address += n;
    data += n;
    bytes -= n;
  }
  return {};
}

// Uncompressed pages are gathered where they will be written from; others go through the crew.
Result<void> DirectSink::open_extent(uint64_t address, bool may_pack) {
  if (may_pack && packs_next()) {
    if (crew_.full()) CKPT_TRY(add_oldest());
    set_pace();
    extent_ = {true, true, address, 0, packed_limit(address), crew_.raw()};
    return {};
  }
  gauge_.left_alone();
  // Where repeated ones are looked for, no extent is cut short by a chunk's end: it would not be like its
  // equals.
  const uint64_t whole = kExtentBytes - address % kExtentBytes;
  CKPT_TRY(make_room(repeated_.active() && whole <= queue_.slot_bytes() - options_.head_bytes
                         ? static_cast<uint32_t>(whole)
                         : kPageSize));
  uint32_t limit =
      static_cast<uint32_t>(std::min<uint64_t>(chunk_.room(), kExtentBytes - address % kExtentBytes));
  extent_ = {true, false, address, 0, limit, chunk_.next_body()};
  return {};
}

Result<void> DirectSink::close_extent() {
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
  const uint64_t offset = offset_ + chunk_.next_offset();
  return list_extent(chunk_.add(extent_.address, extent_.length, extent_.length, Codec::kNone, &checksum),
                     offset, bytes);
}

Result<void> DirectSink::close_all_extents() {
  CKPT_TRY(close_extent());
  while (!crew_.empty()) CKPT_TRY(add_oldest());
  return {};
}

// An extent is listed in the chunk that holds it and in the index, a repeated one in the index only.
Result<bool> DirectSink::list_repeated(const ExtentEntry& e, std::span<const std::byte> bytes) {
  if (!repeated_.active()) return false;
  IndexEntry entry{e.address, 0, e.length, e.stored, e.checksum, e.codec, 0};
  entry.offset = repeated_.candidate(entry);
  if (entry.offset == 0 || !repeated_.same(entry.offset, bytes, queue_.written_from(entry.offset, offset_)))
    return false;
  CKPT_TRY(list_entry(entry));
  memory_told_ += e.length;  // the gauge learns nothing from it
  repeated_bytes_ += round_up_to_block(e.stored);
  return true;
}

Result<void> DirectSink::list_extent(const ExtentEntry& e, uint64_t offset,
                                     std::span<const std::byte> bytes) {
  CKPT_TRY(list_entry({e.address, offset, e.length, e.stored, e.checksum, e.codec, 0}));
  if (repeated_.active()) repeated_.remember(bytes);
  return {};
}

Result<void> DirectSink::list_entry(const IndexEntry& entry) {
  if (index_.push_back(entry)) return {};
  return make_error(ExitCode::kInternal, ENOMEM,
                    "the index of {} does not fit into its arena after {} extents",
                    shown_path(output_->path()).text, index_.size());
}

Result<void> DirectSink::make_room(uint32_t bytes) {
  if (chunk_.active() && chunk_.room() >= bytes) return {};
  CKPT_TRY(flush_chunk());
  auto slot = acquire_slot();
  if (!slot.ok()) return slot.error();
  chunk_slot_ = *slot;
  chunk_.begin(slot_buffer(chunk_slot_), queue_.slot_bytes(), options_.head_bytes,
               held_.active() ? queue_.pieces(chunk_slot_) : std::span<iovec>());
  return {};
}

Result<void> DirectSink::flush_chunk() {
  if (!chunk_.active()) return {};
  if (chunk_.empty()) {
    chunk_.forget();
    if (options_.key == nullptr) queue_.discard(chunk_slot_);
    return {};
  }
  const uint32_t pieces = chunk_.pieces();
  uint32_t bytes = chunk_.finish(sections_, trailer_.image_tag);
  sections_++;
  chunks_++;
  CKPT_TRY(write_slot(chunk_slot_, bytes, false, pieces));
  if (is_measured()) chunk_handed_over(bytes);
  return {};
}

Result<void> DirectSink::set_meta(std::span<const std::byte> meta) {
  if (failed_) return error_;
  if (has_meta_) return keep(make_error(ExitCode::kInternal, 0, "the META section was given twice"));
  has_meta_ = true;
  CKPT_TRY(keep(close_all_extents()));
  CKPT_TRY(keep(flush_chunk()));
  trailer_.meta_offset = offset_;
  trailer_.meta_bytes = meta.size();
  return keep(write_section(SectionKind::kMeta, 0, meta, &trailer_.meta_checksum));
}

Result<void> DirectSink::write_section(SectionKind kind, uint32_t entries, std::span<const std::byte> content,
                                       uint64_t* checksum) {
  static const std::byte kZeros[kBlockSize] = {};
  uint64_t padded = round_up_to_block(content.size());
  StreamingChecksum sum;
  sum.add(content.data(), content.size());
  sum.add(kZeros, padded - content.size());
  *checksum = sum.value();

  auto slot = acquire_slot();
  if (!slot.ok()) return slot.error();
  std::byte* buffer = slot_buffer(*slot);
  std::memset(buffer, 0, kBlockSize);
  auto& head = *reinterpret_cast<SectionHead*>(buffer);
  head.kind = static_cast<uint32_t>(kind);
  head.ordinal = sections_++;
  head.image_tag = trailer_.image_tag;
  head.head_bytes = kBlockSize;
  head.entry_count = entries;
  head.content_bytes = content.size();
  head.body_bytes = padded;
  head.body_checksum = *checksum;
  seal_section_head(head);

  uint32_t filled = kBlockSize;
  while (true) {
    uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(content.size(), queue_.slot_bytes() - filled));
    if (n > 0) std::memcpy(buffer + filled, content.data(), n);
    uint32_t end = static_cast<uint32_t>(round_up_to_block(filled + n));
    std::memset(buffer + filled + n, 0, end - filled - n);
    CKPT_TRY(write_slot(*slot, end));
    content = content.subspan(n);
    if (content.empty()) return {};
    slot = acquire_slot();
    if (!slot.ok()) return slot.error();
    buffer = slot_buffer(*slot);
    filled = 0;
  }
}

Result<void> DirectSink::inherit(std::span<const AddrRange> runs) {
  if (failed_) return error_;
  if (parent_.sequence == 0) return keep(make_error(ExitCode::kInternal, 0, "a full image inherits nothing"));
  for (const AddrRange& run : runs) {
    if (run.empty()) continue;
    if (inherited_.size() > 0) {
      InheritedRun& last = inherited_[inherited_.size() - 1];
      if (last.address + last.length == run.start.value) {
        last.length += run.size();
        continue;
      }
    }
    if (!inherited_.push_back({run.start.value, run.size()})) {
      return keep(make_error(ExitCode::kInternal, ENOMEM,
                             "the inherited memory of {} does not fit into its arena after {} runs",
                             shown_path(output_->path()).text, inherited_.size()));
    }
  }
  return {};
}

Error DirectSink::copied_twice(uint64_t address) const {
  return make_error(ExitCode::kInternal, 0, "the page at {:#x} was copied or inherited twice for {}", address,
                    shown_path(output_->path()).text);
}

// When the index has been sorted: both are in address order then.
Result<void> DirectSink::write_inherited() {
  if (parent_.sequence == 0) return {};
  std::sort(inherited_.begin(), inherited_.end(),
            [](const InheritedRun& a, const InheritedRun& b) { return a.address < b.address; });
  size_t e = 0;
  for (size_t i = 0; i < inherited_.size(); i++) {
    const InheritedRun& run = inherited_[i];
    if (i > 0 && inherited_[i - 1].address + inherited_[i - 1].length > run.address)
      return copied_twice(run.address);
    while (e < index_.size() && index_[e].address + index_[e].length <= run.address) e++;
    if (e < index_.size() && index_[e].address < run.address + run.length)
      return copied_twice(index_[e].address);
  }
  trailer_.inherited_offset = offset_;
  trailer_.inherited_bytes = inherited_.size() * sizeof(InheritedRun);
  return write_section(SectionKind::kInherited, static_cast<uint32_t>(inherited_.size()),
                       std::as_bytes(std::span<const InheritedRun>(inherited_.data(), inherited_.size())),
                       &trailer_.inherited_checksum);
}

Result<void> DirectSink::write_index() {
  std::sort(index_.begin(), index_.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.address < b.address; });
  for (size_t i = 1; i < index_.size(); i++) {
    if (index_[i - 1].address + index_[i - 1].length > index_[i].address) {
      return copied_twice(index_[i].address);
    }
  }
  CKPT_TRY(write_inherited());
  trailer_.index_offset = offset_;
  trailer_.index_bytes = index_.size() * sizeof(IndexEntry);
  return write_section(SectionKind::kIndex, static_cast<uint32_t>(index_.size()),
                       std::as_bytes(std::span<const IndexEntry>(index_.data(), index_.size())),
                       &trailer_.index_checksum);
}

Result<SinkStats> DirectSink::commit() {
  if (failed_) {
    abort();
    return error_;
  }
  auto stats = commit_all();
  if (!stats.ok()) (void)keep(stats.error());
  abort();  // after success there is nothing left to remove
  if (failed_) return error_;
  return stats;
}

Result<SinkStats> DirectSink::commit_all() {
  if (!open_ || !has_meta_) return make_error(ExitCode::kInternal, 0, "commit without open and META");
  CKPT_TRY(close_all_extents());
  CKPT_TRY(flush_chunk());
  CKPT_TRY(write_index());
  points::at("commit.index");
  auto slot = acquire_slot();
  if (!slot.ok()) return slot.error();
  std::memcpy(trailer_.magic, kTrailerMagic, sizeof(trailer_.magic));
  trailer_.version = kFormatVersion;
  trailer_.file_bytes = offset_ + kBlockSize;
  trailer_.section_count = sections_;
  trailer_.extent_count = index_.size();
  trailer_.memory_bytes = memory_bytes_;
  trailer_.checksum =
      checksum_of({reinterpret_cast<const std::byte*>(&trailer_), offsetof(FileTrailer, checksum)});
  std::memcpy(slot_buffer(*slot), &trailer_, kBlockSize);
  CKPT_TRY(write_slot(*slot, kBlockSize, true));
  const int64_t ended_ns = is_measured() ? options_.clock() : 0;
  CKPT_TRY(queue_.drain());
  points::at("commit.trailer");
  const uint64_t file_bytes = options_.key != nullptr ? sealer_.file_bytes() : offset_;
  CKPT_TRY(output_->publish(*backend_, file_bytes, options_.replace));
  if (is_measured()) pace_.ended(options_.clock() - ended_ns);
  pace_.finish();
  if (options_.knowledge != nullptr) *options_.knowledge = {gauge_, pace_};
  return SinkStats{memory_bytes_, file_bytes, as_parent()};
}

ParentImage DirectSink::as_parent() const {
  ParentImage me{};
  me.sequence = trailer_.sequence;
  me.state = trailer_.meta_checksum;
  const uint64_t bytes = offset_ + repeated_bytes_;
  me.full_bytes = parent_.sequence == 0 ? bytes : parent_.full_bytes;
  me.chain_bytes = parent_.chain_bytes + bytes;
  me.chain_length = parent_.chain_length + 1;
  std::memcpy(me.name, name_.text, sizeof(me.name));
  return me;
}

void DirectSink::abort() {
  if (!open_) return;
  open_ = false;
  crew_.stop();
  repeated_.stop();
  queue_.abandon();
  held_.stop();
  output_->remove();
}

}  // namespace ckpt
