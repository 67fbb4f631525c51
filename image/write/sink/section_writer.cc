#include "image/write/sink/section_writer.h"

#include <algorithm>
#include <cstring>

#include "image/format/checksum.h"
#include "image/write/sink/chunk_builder.h"
#include "base/preload_rules.h"

namespace ckpt {

Result<void> SectionWriter::write_header(const ImageIdentity& identity) {
  trailer_ = {};
  ordinals_ = 0;
  auto slot = slots_.acquire();
  if (!slot.ok()) return slot.error();
  auto& header = *reinterpret_cast<FileHeader*>(slots_.buffer(*slot));
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
  return slots_.write(*slot, kBlockSize);
}

Result<void> SectionWriter::write(SectionKind kind, uint32_t entries, std::span<const std::byte> content,
                                  uint64_t* checksum) {
  static const std::byte kZeros[kBlockSize] = {};
  uint64_t padded = round_up_to_block(content.size());
  StreamingChecksum sum;
  sum.add(content.data(), content.size());
  sum.add(kZeros, padded - content.size());
  *checksum = sum.value();

  auto slot = slots_.acquire();
  if (!slot.ok()) return slot.error();
  std::byte* buffer = slots_.buffer(*slot);
  std::memset(buffer, 0, kBlockSize);
  auto& head = *reinterpret_cast<SectionHead*>(buffer);
  head.kind = static_cast<uint32_t>(kind);
  head.ordinal = take_ordinal();
  head.image_tag = trailer_.image_tag;
  head.head_bytes = kBlockSize;
  head.entry_count = entries;
  head.content_bytes = content.size();
  head.body_bytes = padded;
  head.body_checksum = *checksum;
  seal_section_head(head);

  uint32_t filled = kBlockSize;
  while (true) {
    uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(content.size(), slots_.slot_bytes() - filled));
    if (n > 0) std::memcpy(buffer + filled, content.data(), n);
    uint32_t end = static_cast<uint32_t>(round_up_to_block(filled + n));
    std::memset(buffer + filled + n, 0, end - filled - n);
    CKPT_TRY(slots_.write(*slot, end));
    content = content.subspan(n);
    if (content.empty()) return {};
    slot = slots_.acquire();
    if (!slot.ok()) return slot.error();
    buffer = slots_.buffer(*slot);
    filled = 0;
  }
}

Result<void> SectionWriter::write_meta(std::span<const std::byte> meta) {
  trailer_.meta_offset = slots_.offset();
  trailer_.meta_bytes = meta.size();
  return write(SectionKind::kMeta, 0, meta, &trailer_.meta_checksum);
}

Result<void> SectionWriter::write_inherited(std::span<const InheritedRun> runs) {
  trailer_.inherited_offset = slots_.offset();
  trailer_.inherited_bytes = runs.size_bytes();
  return write(SectionKind::kInherited, static_cast<uint32_t>(runs.size()), std::as_bytes(runs),
               &trailer_.inherited_checksum);
}

Result<void> SectionWriter::write_index(std::span<const IndexEntry> index) {
  trailer_.index_offset = slots_.offset();
  trailer_.index_bytes = index.size_bytes();
  trailer_.extent_count = index.size();
  return write(SectionKind::kIndex, static_cast<uint32_t>(index.size()), std::as_bytes(index),
               &trailer_.index_checksum);
}

Result<void> SectionWriter::write_trailer(uint64_t memory_bytes) {
  auto slot = slots_.acquire();
  if (!slot.ok()) return slot.error();
  std::memcpy(trailer_.magic, kTrailerMagic, sizeof(trailer_.magic));
  trailer_.version = kFormatVersion;
  trailer_.file_bytes = slots_.offset() + kBlockSize;
  trailer_.section_count = ordinals_;
  trailer_.memory_bytes = memory_bytes;
  trailer_.checksum =
      checksum_of({reinterpret_cast<const std::byte*>(&trailer_), offsetof(FileTrailer, checksum)});
  std::memcpy(slots_.buffer(*slot), &trailer_, kBlockSize);
  return slots_.write(*slot, kBlockSize, true);
}

}  // namespace ckpt
