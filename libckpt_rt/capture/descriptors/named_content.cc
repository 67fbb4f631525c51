#include <fcntl.h>

#include <algorithm>
#include <string_view>

#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/kinds/file_systems.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

// Bytes of files with a name that the program has open for writing, 16 MiB of them at most. A restart undoes
// what the program writes in place after the checkpoint. (Appended bytes are cut off at a restart, and need
// no copy.)

namespace ckpt {
namespace {

// Bytes in an image. All are copied in the stop, in some two milliseconds, if all are being written.
constexpr uint64_t kMost = 16 << 20;
// A longer file that is only written, and at its end, is one that grows: an output, a log.
constexpr uint64_t kLong = 64 << 10;

}  // namespace

// Of what is mapped the memory half of the image has the bytes.
bool DescriptorCapture::can_change_in_place(size_t first_in_order) {
  return files_.in_order(first_in_order).now.size <= kMost && may_overwrite(first_in_order);
}

bool DescriptorCapture::may_overwrite(size_t first_in_order) {
  const CapturedDescriptor& head = files_.in_order(first_in_order);
  if (!saves_contents_ || head.kind != OpenFileKind::kRegular || (head.flags & kOpenFileDeleted) != 0 ||
      !std::string_view(head.path, head.path_len).starts_with('/'))
    return false;
  for (const MappedFileRange& m : mapped_) {
    if (m.device == head.now.device && m.inode == head.now.inode) return false;
  }
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

// A single note for all files: `count` of them, `first` the first.
Result<void> DescriptorCapture::note_too_long(size_t count, const CapturedDescriptor& first) {
  return notes_.add(
      kChanged,
      "{} {} that the program has open for writing {} too long for the image ({} MiB for all): what "
      "it overwrites there "
      "after this checkpoint is not put back at a restart (the first: descriptor {}, {})",
      count, count == 1 ? "file" : "files", count == 1 ? "is" : "are", kMost >> 20, first.fd, first.path);
}

void DescriptorCapture::save_contents() { saves_contents_ = true; }

// Memory is for what has no name first.
uint64_t DescriptorCapture::room_for_contents() const {
  return saves_contents_ ? std::min(kMost, (files_.arena().range().size() - files_.arena().used()) / 8) : 0;
}

// Of the memory that was touched ahead of the stop, if there is enough of it.
std::byte* DescriptorCapture::take_memory(uint64_t bytes) {
  if (bytes > ahead_.size()) return static_cast<std::byte*>(files_.arena().allocate(bytes));
  std::byte* taken = ahead_.data();
  ahead_ = ahead_.subspan(bytes);
  return taken;
}

// bytes: of files that were being written while others were copied.
void DescriptorCapture::get_memory_ahead(uint64_t bytes) {
  files_.arena().populate(bytes);
  auto* memory = static_cast<std::byte*>(files_.arena().allocate(bytes));
  if (memory != nullptr) ahead_ = {memory, bytes};
}

}  // namespace ckpt
