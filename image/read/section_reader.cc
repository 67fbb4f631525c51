#include "image/read/section_reader.h"

#include <errno.h>

#include <cstring>

#include "image/format/checksum.h"
#include "image/format/io_error.h"

namespace ckpt {

Error SectionReader::damaged(const char* what, uint64_t at) const {
  return make_error(ExitCode::kImageDamaged, 0,
                    "{}: damaged at byte {}: {}; use an older image of this program", shown_path(path_).text,
                    at, what);
}

Result<ReadSection> SectionReader::read_head(uint64_t offset) const {
  uint64_t end = brief_.file_bytes - kBlockSize;  // where the trailer starts
  if (offset % kBlockSize != 0 || offset < kBlockSize || offset > end - kBlockSize) {
    return damaged("a section lies outside the file", offset);
  }
  ReadSection section;
  SectionHead& head = section.head;
  std::vector<std::byte> bytes(kBlockSize);
  CKPT_TRY(bytes_.read(bytes.data(), kBlockSize, offset, path_));
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kSectionMagic || head.head_bytes < kBlockSize || head.head_bytes > kMaxHeadBytes ||
      head.head_bytes % kBlockSize != 0 || head.head_bytes > end - offset) {
    return damaged("no section starts here", offset);
  }
  bytes.resize(head.head_bytes);
  CKPT_TRY(bytes_.read(bytes.data(), bytes.size(), offset, path_));
  std::memset(bytes.data() + offsetof(SectionHead, head_checksum), 0, sizeof(head.head_checksum));
  if (checksum_of(bytes) != head.head_checksum)
    return damaged("checksum of a section's head is wrong", offset);
  if (head.image_tag != brief_.image_tag) return damaged("a section belongs to another image", offset);
  uint64_t body = offset + head.head_bytes;
  if (head.body_bytes > end - body || head.content_bytes > head.body_bytes ||
      head.body_bytes != round_up_to_block(head.content_bytes)) {
    return damaged("a section is longer than the file", offset);
  }
  size_t used = sizeof(SectionHead);
  if (head.kind == static_cast<uint32_t>(SectionKind::kChunk)) {
    if (head.entry_count > (head.head_bytes - used) / sizeof(ExtentEntry)) {
      return damaged("a chunk lists more extents than fit", offset);
    }
    section.extents.resize(head.entry_count);
    if (head.entry_count > 0) {
      std::memcpy(section.extents.data(), bytes.data() + used, head.entry_count * sizeof(ExtentEntry));
    }
    used += head.entry_count * sizeof(ExtentEntry);
  }
  for (size_t i = used; i < bytes.size(); i++) {
    if (bytes[i] != std::byte{0}) return damaged("padding of a section's head is used", offset + i);
  }
  return section;
}

}  // namespace ckpt
