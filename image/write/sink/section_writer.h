// The format around memory: header, the sections META, INHERITED and INDEX, trailer (image_format.h), and the
// numbers and tags of all sections.
//
// Owner:     image/write (DirectSink). Callers: the sink's thread only, in the victim. No allocation.
#pragma once

#include "image/write/image_sink.h"
#include "image/write/sink/slot_writer.h"

namespace ckpt {

class SectionWriter {
 public:
  explicit SectionWriter(SlotWriter& slots) : slots_(slots) {}

  Result<void> write_header(const ImageIdentity& identity);
  Result<void> write_meta(std::span<const std::byte> meta);
  Result<void> write_inherited(std::span<const InheritedRun> runs);  // in address order
  Result<void> write_index(std::span<const IndexEntry> index);       // in address order
  // The last of all. memory_bytes: of pages.
  Result<void> write_trailer(uint64_t memory_bytes);

  // Of the next section, which then has it.
  uint64_t take_ordinal() { return ordinals_++; }
  uint64_t image_tag() const { return trailer_.image_tag; }
  // What identifies this image for an increment to it: known when META is written.
  uint64_t sequence() const { return trailer_.sequence; }
  uint64_t state() const { return trailer_.meta_checksum; }

 private:
  Result<void> write(SectionKind kind, uint32_t entries, std::span<const std::byte> content,
                     uint64_t* checksum);

  SlotWriter& slots_;
  FileTrailer trailer_ = {};
  uint64_t ordinals_ = 0;
};

}  // namespace ckpt
