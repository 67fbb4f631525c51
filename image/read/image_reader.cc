#include "image/read/image_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <lz4.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <new>

#include "base/sys.h"
#include "image/format/checksum.h"
#include "image/format/io_error.h"
#include "image/read/section_reader.h"
#include "image/read/sources/reading_key.h"
#include "image/read/sources/reading_trust.h"

namespace ckpt {

namespace {

// What the format allows one extent to be, wherever it is listed.
const char* impossible_extent(const IndexEntry& e) {
  if (e.length == 0 || e.length % kBlockSize != 0 || e.address % kBlockSize != 0 ||
      e.address > UINT64_MAX - e.length) {
    return "an extent has an impossible address or length";
  }
  if (e.reserved != 0 || e.offset % kBlockSize != 0) return "an extent has an impossible place";
  switch (static_cast<Codec>(e.codec)) {
    case Codec::kNone:
      return e.stored == e.length ? nullptr : "an uncompressed extent has another length in the file";
    case Codec::kLz4:
    case Codec::kZstd:
      if (e.stored == 0 || e.stored >= e.length || e.length > kMaxCompressedExtent) {
        return "a compressed extent has an impossible length";
      }
      return nullptr;
  }
  return "an extent has an unknown codec";
}

}  // namespace

Error ImageReader::damaged(const char* what, uint64_t at) const {
  return make_error(ExitCode::kImageDamaged, 0,
                    "{}: damaged at byte {}: {}; use an older image of this program",
                    shown_path(path_.c_str()).text, at, what);
}

Result<ImageReader> ImageReader::open(const std::string& path, ImageParts parts) {
  // O_NONBLOCK: a FIFO of that name must not hold us up before it is refused.
  long fd = sys::call(__NR_openat, static_cast<long>(AT_FDCWD), path.c_str(),
                      O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0L);
  if (fd == -ENOENT || fd == -ENOTDIR) {
    return make_error(ExitCode::kNotFound, static_cast<int>(-fd),
                      "{}: no such image; 'ckpt ls' lists those of a directory",
                      shown_path(path.c_str()).text);
  }
  if (sys::failed(fd)) {
    return make_error(fd == -EACCES ? ExitCode::kPermission : ExitCode::kIo, static_cast<int>(-fd),
                      "{}: cannot be opened ({}); images belong to the user who ran the program",
                      shown_path(path.c_str()).text, errno_name(static_cast<int>(fd)));
  }
  ScopedFd file(static_cast<int>(fd));
  CKPT_TRY(check_trust(file.get(), path));
  return adopt(std::move(file), path, parts);
}

Result<ImageReader> ImageReader::adopt(ScopedFd fd, const std::string& path, ImageParts parts) {
  ImageReader image;
  image.path_ = path;
  image.fd_ = std::move(fd);
  auto brief = probe_image(image.fd(), path.c_str(), reading_key(), &image.bytes_);
  if (!brief.ok()) return brief.error();
  image.brief_ = *brief;
  if (parts == ImageParts::kDescription) {
    CKPT_TRY(image.load_meta());
    return image;
  }
  CKPT_TRY(image.load_index());
  CKPT_TRY(image.load_inherited());
  if (parts == ImageParts::kMemory) return image;
  CKPT_TRY(image.load_meta());
  CKPT_TRY(image.check_in_mappings());
  return image;
}

void ImageReader::read_ahead() const {
  constexpr uint64_t kStep = 1u << 20;   // bytes: of more at once the kernel takes the first part
  constexpr uint64_t kMost = 64u << 20;  // whatever the trailer says, which nobody has compared with the rest
  if (!stored_plainly() || brief_.index_offset > brief_.file_bytes) return;
  const uint64_t first = brief_.index_offset, end = first + std::min({kMost, brief_.file_bytes - first,
                                                                      brief_.index_bytes + 2 * kBlockSize});
  for (uint64_t at = first; at < end; at += kStep) {
    posix_fadvise(fd(), static_cast<off_t>(at), static_cast<off_t>(kStep), POSIX_FADV_WILLNEED);
  }
}

// A file can be as long as it says without being there: whoever wrote it has not spent what reading it would
// take.
Result<void> ImageReader::check_is_stored(uint64_t at, uint64_t bytes) const {
  constexpr uint64_t kSmall =
      64u << 20;  // bytes, of which a copy without what is zero may leave out any part
  constexpr uint64_t kLeastPart = 16;
  if (bytes <= kSmall || !stored_plainly()) return {};
  uint64_t stored = 0;
  for (auto from = static_cast<off_t>(at), end = static_cast<off_t>(at + bytes); from < end;) {
    const off_t data = lseek(fd(), from, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return {};  // a file system that cannot tell
    if (data < 0 || data >= end) break;
    const off_t hole = std::min(lseek(fd(), data, SEEK_HOLE), end);
    if (hole <= data) return {};
    stored += static_cast<uint64_t>(hole - data);
    from = hole;
  }
  return stored >= bytes / kLeastPart ? Result<void>()
                                      : damaged("next to nothing of a section is in the file", at);
}

Result<std::unique_ptr<std::byte[]>> ImageReader::load_section(SectionKind kind, uint64_t offset,
                                                               uint64_t content, uint64_t checksum,
                                                               SectionHead* head) const {
  SectionReader sections(bytes_, path_.c_str(), brief_);
  auto read = sections.read_head(offset);
  if (!read.ok()) return read.error();
  *head = read->head;
  if (head->kind != static_cast<uint32_t>(kind) || head->content_bytes != content ||
      head->body_checksum != checksum) {
    return damaged("a section is not what the trailer says", offset);
  }
  uint64_t body = offset + head->head_bytes;
  CKPT_TRY(check_is_stored(body, head->body_bytes));
  std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[head->body_bytes + 1]);
  if (bytes == nullptr) {
    return make_error(ExitCode::kSystem, ENOMEM, "{}: no memory for a section of {} bytes; free some",
                      shown_path(path_.c_str()).text, head->body_bytes);
  }
  CKPT_TRY(bytes_.read(bytes.get(), head->body_bytes, body, path_.c_str()));
  if (checksum_of({bytes.get(), head->body_bytes}) != checksum) {
    return damaged("checksum of a section is wrong", body);
  }
  for (uint64_t i = content; i < head->body_bytes; i++) {
    if (bytes[i] != std::byte{0}) return damaged("padding of a section is used", body + i);
  }
  return bytes;
}

Result<void> ImageReader::load_meta() {
  SectionHead head;
  auto bytes =
      load_section(SectionKind::kMeta, brief_.meta_offset, brief_.meta_bytes, brief_.meta_checksum, &head);
  if (!bytes.ok()) return bytes.error();
  meta_bytes_ = std::move(*bytes);
  auto meta = parse_meta({meta_bytes_.get(), brief_.meta_bytes}, path_.c_str());
  if (!meta.ok()) return meta.error();
  meta_ = std::move(*meta);
  return {};
}

Result<void> ImageReader::load_index() {
  // Before memory is asked for: the list lies in the file.
  if (brief_.extent_count > brief_.file_bytes / sizeof(IndexEntry) ||
      brief_.extent_count * sizeof(IndexEntry) != brief_.index_bytes) {
    return damaged("the index has another size than the trailer says", brief_.index_offset);
  }
  SectionHead head;
  auto bytes = load_section(SectionKind::kIndex, brief_.index_offset, brief_.index_bytes,
                            brief_.index_checksum, &head);
  if (!bytes.ok()) return bytes.error();
  if (brief_.index_offset + head.head_bytes + head.body_bytes + kBlockSize != brief_.file_bytes) {
    return damaged("the index is not the last section", brief_.index_offset);
  }
  uint64_t count = brief_.extent_count;
  if (head.entry_count != count || head.ordinal + 1 != brief_.section_count) {
    return damaged("the index has another size than the trailer says", brief_.index_offset);
  }
  // Checked as what they are in the file, used as what they mean.
  const std::span<const IndexEntry> entries(reinterpret_cast<const IndexEntry*>(bytes->get()), count);
  uint64_t memory = 0, end = 0;
  for (const IndexEntry& e : entries) {
    if (const char* wrong = impossible_extent(e)) return damaged(wrong, brief_.index_offset);
    if (e.address < end) return damaged("extents overlap or are out of order", brief_.index_offset);
    uint64_t padded = round_up_to_block(e.stored);
    if (e.offset < kBlockSize || e.offset > brief_.index_offset || padded > brief_.index_offset - e.offset) {
      return damaged("an extent lies outside the data of the file", brief_.index_offset);
    }
    end = e.address + e.length;
    memory += e.length;
  }
  if (memory != brief_.memory_bytes) return damaged("the index covers other memory than the trailer says", 0);
  index_bytes_ = std::move(*bytes);
  extents_ = {reinterpret_cast<const Extent*>(index_bytes_.get()), count};
  return {};
}

Result<void> ImageReader::load_inherited() {
  const ImageBrief& b = brief_;
  if (b.parent.sequence == 0) {
    if ((b.inherited_offset | b.inherited_bytes | b.inherited_checksum) != 0) {
      return damaged("a full image inherits memory", b.inherited_offset);
    }
    return {};
  }
  // Before memory is asked for: it lies in the file.
  if (b.inherited_bytes > b.file_bytes || b.inherited_bytes % sizeof(InheritedRun) != 0) {
    return damaged("the inherited memory has an impossible size", b.inherited_offset);
  }
  SectionHead head;
  auto bytes = load_section(SectionKind::kInherited, b.inherited_offset, b.inherited_bytes,
                            b.inherited_checksum, &head);
  if (!bytes.ok()) return bytes.error();
  uint64_t count = b.inherited_bytes / sizeof(InheritedRun);
  if (head.entry_count != count)
    return damaged("the inherited memory has another size than its head says", b.inherited_offset);
  inherited_.reserve(count);
  size_t e = 0;
  for (uint64_t i = 0; i < count; i++) {
    InheritedRun run;
    std::memcpy(&run, bytes->get() + i * sizeof(run), sizeof(run));
    if (run.length == 0 || (run.address | run.length) % kBlockSize != 0 ||
        run.address > UINT64_MAX - run.length) {
      return damaged("inherited memory has an impossible address or length", b.inherited_offset);
    }
    AddrRange range{{run.address}, {run.address + run.length}};
    if (!inherited_.empty() && inherited_.back().end > range.start) {
      return damaged("inherited memory overlaps or is out of order", b.inherited_offset);
    }
    while (e < extents_.size() && extents_[e].address + extents_[e].length <= range.start) e++;
    if (e < extents_.size() && extents_[e].address < range.end) {
      return damaged("memory is inherited and in the image too", b.inherited_offset);
    }
    inherited_.push_back(range);
  }
  return {};
}

// Both lists are in address order.
Result<void> ImageReader::check_in_mappings() const {
  const auto& mappings = meta_.mappings;
  auto check = [&](size_t* m, uint64_t at, uint64_t end) -> Result<void> {
    while (at < end) {
      while (*m < mappings.size() && mappings[*m].record.end <= at) ++*m;
      bool inside = *m < mappings.size() && mappings[*m].record.start <= at;
      if (!inside || mappings[*m].record.kind == static_cast<uint32_t>(MappingKind::kVdso) ||
          mappings[*m].record.kind == static_cast<uint32_t>(MappingKind::kLibraryOwned)) {
        return make_error(ExitCode::kImageDamaged, 0,
                          "{}: damaged: memory at {:#x} belongs to no saved mapping; use an older image",
                          shown_path(path_.c_str()).text, at);
      }
      at = mappings[*m].record.end;
    }
    return {};
  };
  size_t m = 0;
  for (const Extent& e : extents_) CKPT_TRY(check(&m, e.address.value, e.address.value + e.length));
  m = 0;
  for (const AddrRange& run : inherited_) CKPT_TRY(check(&m, run.start.value, run.end.value));
  return {};
}

Result<void> ImageReader::read_extent(const Extent& extent, std::span<std::byte> out) const {
  if (out.size() != extent.length) {
    return make_error(ExitCode::kInternal, 0, "a buffer of {} bytes for an extent of {}", out.size(),
                      extent.length);
  }
  uint64_t padded = round_up_to_block(extent.stored);
  std::unique_ptr<std::byte[]> packed;
  std::byte* to = out.data();
  if (extent.codec != Codec::kNone) {
    packed.reset(new (std::nothrow) std::byte[padded]);
    if (packed == nullptr) {
      return make_error(ExitCode::kSystem, ENOMEM, "{}: no memory to unpack {} bytes; free some",
                        shown_path(path_.c_str()).text, extent.length);
    }
    to = packed.get();
  }
  CKPT_TRY(bytes_.read(to, padded, extent.offset.value, path_.c_str()));
  auto memory = open_extent(extent, {to, padded}, out);
  if (!memory.ok()) return memory.error();
  return {};
}

Result<const std::byte*> ImageReader::open_extent(const Extent& extent, std::span<const std::byte> stored,
                                                  std::span<std::byte> out) const {
  if (checksum_of(stored) != extent.checksum) {
    return damaged("checksum of the memory is wrong", extent.offset.value);
  }
  if (extent.codec == Codec::kNone) return stored.data();
  uint64_t got = 0;
  if (extent.codec == Codec::kLz4) {
    int n =
        LZ4_decompress_safe(reinterpret_cast<const char*>(stored.data()), reinterpret_cast<char*>(out.data()),
                            static_cast<int>(extent.stored), static_cast<int>(out.size()));
    got = n < 0 ? 0 : static_cast<uint64_t>(n);
  } else {
    size_t n = ZSTD_decompress(out.data(), out.size(), stored.data(), extent.stored);
    got = ZSTD_isError(n) ? 0 : n;
  }
  if (got != extent.length) return damaged("compressed memory cannot be unpacked", extent.offset.value);
  return static_cast<const std::byte*>(out.data());
}

}  // namespace ckpt
