#include "image/format/image_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/sys.h"
#include "image/format/checksum.h"
#include "image/format/image_name.h"
#include "image/format/io_error.h"
#include "job/format/job_name.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kSmallestImage = 2 * kBlockSize;

template <typename Block>
bool block_is_whole(const Block& block) {
  static_assert(sizeof(Block) == kBlockSize);
  return block.checksum == checksum_of({reinterpret_cast<const std::byte*>(&block), kBlockSize - 8});
}

bool all_zero(const uint8_t* bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (bytes[i] != 0) return false;
  }
  return true;
}

Error damaged(const char* path, const char* what) {
  return make_error(ExitCode::kImageDamaged, 0, "{}: damaged: {}; use an older image of this program",
                    shown_path(path).text, what);
}

Error incompatible(const char* path, const char* what, uint64_t has, uint64_t wants) {
  return make_error(ExitCode::kIncompatible, 0,
                    "{}: image of {} {}, this ckpt_rt reads {}; use the ckpt_rt that wrote it",
                    shown_path(path).text, what, has, wants);
}

// May an image of this sequence have this parent? The name must lead to a file beside the image, or to one of
// another checkpoint of the same job, and nowhere else.
bool possible_parent(const ParentImage& parent, uint64_t sequence) {
  if (parent.sequence == 0) return all_zero(reinterpret_cast<const uint8_t*>(&parent), sizeof(parent));
  size_t n = strnlen(parent.name, sizeof(parent.name));
  ParsedImageName parsed;
  return parent.sequence < sequence && parent.chain_length > 0 && parent.chain_length <= kMaxChainLength &&
         parent.reserved == 0 && n < sizeof(parent.name) &&
         all_zero(reinterpret_cast<const uint8_t*>(parent.name) + n, sizeof(parent.name) - n) &&
         ((parse_image_name({parent.name, n}, &parsed) && !parsed.temporary &&
           std::string_view(parent.name, n).find('/') == std::string_view::npos) ||
          job::is_parent_in_job({parent.name, n}));
}

// A complete image's last block, or why it is none.
Result<void> check_trailer(const FileHeader& header, const FileTrailer& trailer, uint64_t file_bytes,
                           const char* path) {
  if (std::memcmp(trailer.magic, kTrailerMagic, sizeof(kTrailerMagic)) != 0) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: truncated or never finished (no trailer at its end, {} bytes); use an older image "
                      "of this program",
                      shown_path(path).text, file_bytes);
  }
  if (!block_is_whole(trailer)) return damaged(path, "checksum of the trailer is wrong");
  if (trailer.version != header.version || trailer.image_tag != header.checksum ||
      std::memcmp(trailer.run_id, header.run_id, sizeof(header.run_id)) != 0 ||
      trailer.sequence != header.sequence) {
    return damaged(path, "header and trailer belong to different images");
  }
  if (trailer.file_bytes != file_bytes) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: {} bytes long instead of {}; copy it again or use an older image",
                      shown_path(path).text, file_bytes, trailer.file_bytes);
  }
  if (trailer.reserved != 0 || !all_zero(trailer.zeros, sizeof(trailer.zeros))) {
    return damaged(path, "reserved bytes of the trailer are used");
  }
  return {};
}

Result<void> check_header(const FileHeader& header, const char* path) {
  if (std::memcmp(header.magic, kHeaderMagic, sizeof(kHeaderMagic)) != 0) {
    return make_error(ExitCode::kImageDamaged, 0, "{}: not a ckpt_rt image; give a file named *.ckpt",
                      shown_path(path).text);
  }
  if (!block_is_whole(header)) return damaged(path, "checksum of the header is wrong");
  if (header.version != kFormatVersion) {
    return incompatible(path, "format version", header.version, kFormatVersion);
  }
  if (header.byte_order != kByteOrderMark) {
    return incompatible(path, "byte order", header.byte_order, kByteOrderMark);
  }
  if (header.machine != kMachineX86_64) {
    return incompatible(path, "ELF machine", header.machine, kMachineX86_64);
  }
  if (header.page_size != kBlockSize) return incompatible(path, "page size", header.page_size, kBlockSize);
  if (header.sequence == 0 || !possible_parent(header.parent, header.sequence)) {
    return damaged(path, "its place in the sequence of images is impossible");
  }
  if (!all_zero(header.zeros, sizeof(header.zeros))) {
    return damaged(path, "reserved bytes of the header are used");
  }
  return {};
}

}  // namespace

bool read_exactly(int fd, void* to, uint64_t bytes, uint64_t offset, int* error) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    long n = sys::call(__NR_pread64, fd, at, bytes, offset);
    if (n == -EINTR) continue;
    if (n <= 0) {
      *error = static_cast<int>(-n);
      return false;
    }
    at += n;
    bytes -= static_cast<uint64_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

Result<ImageBrief> probe_image(int fd, const char* path, const ImageKey* key, ImageBytes* bytes) {
  struct stat st;
  long r = sys::call(__NR_newfstatat, fd, "", &st, static_cast<long>(AT_EMPTY_PATH));
  if (sys::failed(r)) {
    return make_error(ExitCode::kIo, static_cast<int>(-r), "{}: cannot be examined ({})",
                      shown_path(path).text, errno_name(static_cast<int>(-r)));
  }
  if (!S_ISREG(st.st_mode)) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: not a regular file; give an image file or its directory", shown_path(path).text);
  }
  uint64_t size = static_cast<uint64_t>(st.st_size);
  if (size == 0) {
    return make_error(ExitCode::kImageDamaged, 0, "{}: empty; use an older image of this program",
                      shown_path(path).text);
  }
  auto opened = ImageBytes::open(fd, size, key, path);
  if (!opened.ok()) return opened.error();
  const ImageBytes& image = *opened;
  size = image.size();
  FileHeader header{};
  CKPT_TRY(image.read(&header, size < kBlockSize ? size : kBlockSize, 0, path));
  bool magic = std::memcmp(header.magic, kHeaderMagic, sizeof(kHeaderMagic)) == 0;
  if (magic && size < kSmallestImage) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: truncated to {} bytes; use an older image of this program", shown_path(path).text,
                      size);
  }
  CKPT_TRY(check_header(header, path));
  if (size % kBlockSize != 0 || size > INT64_MAX) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: truncated or appended to ({} bytes, not a multiple of 4096); use an older image",
                      shown_path(path).text, size);
  }
  FileTrailer trailer;
  CKPT_TRY(image.read(&trailer, kBlockSize, size - kBlockSize, path));
  CKPT_TRY(check_trailer(header, trailer, size, path));
  ImageBrief brief;
  if (bytes != nullptr) *bytes = image;
  brief.version = header.version;
  brief.encrypted = image.sealed();
  std::memcpy(brief.run_id, header.run_id, sizeof(brief.run_id));
  brief.sequence = header.sequence;
  brief.parent = header.parent;
  brief.realtime_ns = header.realtime_ns;
  brief.file_bytes = size;
  brief.image_tag = header.checksum;
  brief.meta_offset = trailer.meta_offset;
  brief.meta_bytes = trailer.meta_bytes;
  brief.meta_checksum = trailer.meta_checksum;
  brief.index_offset = trailer.index_offset;
  brief.index_bytes = trailer.index_bytes;
  brief.index_checksum = trailer.index_checksum;
  brief.inherited_offset = trailer.inherited_offset;
  brief.inherited_bytes = trailer.inherited_bytes;
  brief.inherited_checksum = trailer.inherited_checksum;
  brief.section_count = trailer.section_count;
  brief.extent_count = trailer.extent_count;
  brief.memory_bytes = trailer.memory_bytes;
  return brief;
}

}  // namespace ckpt
