#include "image/write/direct_sink.h"

#include <cstring>

#include "base/checks/check.h"
#include "base/checks/named_points.h"
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

Result<void> DirectSink::note_failure(Result<void> result) {
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
  parent_ = identity.parent;
  auto result = note_failure(open_all(dir_fd, name, identity, arena));
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
  stored_.start(arena, output_->path());
  chunks_.start(options_);
  CKPT_TRY(memory_.start_crew(options_, arena, release_, context_));
  CKPT_TRY(slots_.start(options_, identity.run_id, *output_, arena));
  plan_.start(options_, slots_.backend()->overlaps());
  CKPT_TRY(memory_.start(arena, release_, context_));
  // A stream cannot be read back, and what is encrypted would have to be decrypted for it.
  if (output_ == &file_ && options_.key == nullptr) CKPT_TRY(stored_.look_for_repeated(file_.fd(), arena));
  return sections_.write_header(identity);
}

Result<void> DirectSink::append(std::span<const CopiedSegment> segments) {
  Result<void> result;
  if (failed_) result = error_;
  if (memory_.memory_bytes() == 0) plan_.first_memory();
  for (const CopiedSegment& segment : segments) {
    bool held = false;
    if (result.ok()) result = note_failure(memory_.add(segment, &held));
    if (!held) release_(context_, segment.buffer);
  }
  return result;
}

Result<void> DirectSink::set_meta(std::span<const std::byte> meta) {
  if (failed_) return error_;
  if (has_meta_) return note_failure(make_error(ExitCode::kInternal, 0, "the META section was given twice"));
  has_meta_ = true;
  CKPT_TRY(note_failure(memory_.close()));
  CKPT_TRY(note_failure(chunks_.flush()));
  return note_failure(sections_.write_meta(meta));
}

Result<void> DirectSink::inherit(std::span<const AddrRange> runs) {
  if (failed_) return error_;
  if (parent_.sequence == 0)
    return note_failure(make_error(ExitCode::kInternal, 0, "a full image inherits nothing"));
  return note_failure(stored_.inherit(runs));
}

Result<SinkStats> DirectSink::commit() {
  if (failed_) {
    abort();
    return error_;
  }
  auto stats = commit_all();
  if (!stats.ok()) (void)note_failure(stats.error());
  abort();  // after success there is nothing left to remove
  if (failed_) return error_;
  return stats;
}

Result<SinkStats> DirectSink::commit_all() {
  if (!open_ || !has_meta_) return make_error(ExitCode::kInternal, 0, "commit without open and META");
  CKPT_TRY(memory_.close());
  CKPT_TRY(chunks_.flush());
  CKPT_TRY(stored_.sort_and_check());
  // A page that was taken and is not listed would be zeros after a restart.
  if (!CHECK_EQ(stored_.listed_bytes(), memory_.memory_bytes()))
    return make_error(ExitCode::kInternal, 0, "{}: the index lists {} bytes of memory, and {} were given",
                      output_->path(), stored_.listed_bytes(), memory_.memory_bytes());
  if (parent_.sequence != 0) CKPT_TRY(sections_.write_inherited(stored_.inherited()));
  CKPT_TRY(sections_.write_index(stored_.index()));
  points::at("commit.index");
  CKPT_TRY(sections_.write_trailer(memory_.memory_bytes()));
  const int64_t ended_ns = options_.is_measured() ? options_.clock() : 0;
  CKPT_TRY(slots_.drain());
  points::at("commit.trailer");
  const uint64_t file_bytes = slots_.file_bytes();
  CKPT_TRY(output_->publish(*slots_.backend(), file_bytes, options_.replace));
  if (options_.is_measured()) plan_.ended(options_.clock() - ended_ns);
  plan_.finish();
  return SinkStats{memory_.memory_bytes(), file_bytes, as_parent()};
}

ParentImage DirectSink::as_parent() const {
  ParentImage me{};
  me.sequence = sections_.sequence();
  me.state = sections_.state();
  const uint64_t bytes = slots_.offset() + stored_.repeated_bytes();
  me.full_bytes = parent_.sequence == 0 ? bytes : parent_.full_bytes;
  me.chain_bytes = parent_.chain_bytes + bytes;
  me.chain_length = parent_.chain_length + 1;
  std::memcpy(me.name, name_.text, sizeof(me.name));
  return me;
}

void DirectSink::abort() {
  if (!open_) return;
  open_ = false;
  memory_.stop();
  stored_.stop();
  slots_.abandon();
  chunks_.stop();
  output_->remove();
}

}  // namespace ckpt
