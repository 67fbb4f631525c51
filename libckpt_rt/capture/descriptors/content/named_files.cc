#include "libckpt_rt/capture/descriptors/content/named_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>

#include "libckpt_rt/capture/descriptors/kinds/file_systems.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// Bytes in an image. All are copied in the stop, in some two milliseconds, if all are being written.
constexpr uint64_t kMost = 16 << 20;
// A longer file that is only written, and at its end, is one that grows: an output, a log.
constexpr uint64_t kLong = 64 << 10;

}  // namespace

uint64_t NamedFiles::bytes_ahead(size_t first_in_order) {
  const CapturedDescriptor& head = files_.in_order(first_in_order);
  if (head.now.size <= kMost) return head.now.size;
  // Opened only if it is sparse.
  constexpr uint64_t kBlock = 512;  // bytes, stat(2)
  struct stat st;
  if (head.has_lease || stat_descriptor(access_.tid_of(head), head.fd, st) < 0) return FileReader::kAny;
  const uint64_t bytes = static_cast<uint64_t>(st.st_blocks) * kBlock;
  if (bytes > kMost) return FileReader::kAny;
  for (const uint32_t i : files_.same_inode(first_in_order)) files_.entries()[i].is_sparse = true;
  return bytes;
}

bool NamedFiles::is_sparse(size_t first_in_order) const {
  const std::span<const uint32_t> same = files_.same_inode(first_in_order);
  return std::any_of(same.begin(), same.end(), [&](uint32_t i) { return files_.entries()[i].is_sparse; });
}

bool NamedFiles::may_overwrite(size_t first_in_order) {
  const CapturedDescriptor& head = files_.in_order(first_in_order);
  if (!saves_ || head.kind != OpenFileKind::kRegular || (head.flags & kOpenFileDeleted) != 0 ||
      !std::string_view(head.path, head.path_len).starts_with('/') || reader_.is_mapped(head))
    return false;
  for (const uint32_t i : files_.same_inode(first_in_order)) {
    const CapturedDescriptor& d = files_.entries()[i];
    const uint32_t flags = d.now.open_flags;
    const bool grows = (flags & O_APPEND) != 0 ||
                       ((flags & O_ACCMODE) == O_WRONLY && d.now.size > kLong && d.now.offset == d.now.size);
    if ((flags & O_ACCMODE) == O_RDONLY || (flags & O_PATH) != 0 || grows) continue;
    if (d.now.device == plain_device_) return true;
    if (is_made_by_the_kernel(TaskPath(access_.tid_of(d), "fd", d.fd).c_str())) return false;
    plain_device_ = d.now.device;
    return true;
  }
  return false;
}

Result<void> NamedFiles::note_too_long(DescriptorNotes& notes, size_t count,
                                       const CapturedDescriptor& first) {
  return notes.add(
      kChanged,
      "{} {} that the program has open for writing {} too long for the image ({} MiB for all): what "
      "it overwrites there "
      "after this checkpoint is not put back at a restart (the first: descriptor {}, {})",
      count, count == 1 ? "file" : "files", count == 1 ? "is" : "are", kMost >> 20, first.fd, first.path);
}

// Memory is for what has no name first.
uint64_t NamedFiles::begin() {
  const Arena& arena = files_.arena();
  return room_ = saves_ ? std::min(kMost, (arena.range().size() - arena.used()) / 8) : 0;
}

}  // namespace ckpt
