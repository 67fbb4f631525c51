#include <fcntl.h>
#include <linux/fanotify.h>
#include <sys/stat.h>

#include <cstring>

#include "base/memory/bytes.h"
#include "libckpt_rt/capture/descriptors/kinds/file_watches.h"
#include "libckpt_rt/capture/descriptors/kinds/watched_names.h"
#include "libckpt_rt/capture/descriptors/noted/fanotify_groups.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

// Groups of fanotify(7) and their marks, as fdinfo tells them:
// "fanotify flags:e02 event-flags:8000"
// "fanotify ino:2c sdev:800001 mflags:0 mask:100 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:…"
// "fanotify mnt_id:1f mflags:0 mask:20 ignored_mask:0"
// "fanotify sdev:800001 mflags:0 mask:20 ignored_mask:0"
// "fanotify mnt_ns:4026531832 mflags:0 mask:3000000 ignored_mask:0" (Linux 6.15; the number is decimal)

namespace ckpt {
namespace {

constexpr std::string_view kGroup = "fanotify flags:", kMark = "fanotify ";
constexpr const char* kOwnMounts = "/proc/self/ns/mnt";

std::string_view group_line(std::string_view info) {
  std::string_view line;
  while (next_line(info, line)) {
    if (line.starts_with(kGroup)) return line;
  }
  return {};
}

size_t find_place(std::string_view line, std::string_view mounts, FanotifyMarkDetail& mark, char* name) {
  WatchedFile file{};
  uint64_t number = 0, device = 0;
  if (parse_watched(line, file)) {
    mark.object = static_cast<uint32_t>(MarkedObject::kFile);
    const size_t n = find_watched_name(mounts, file, name);
    if (file.is_link) mark.flags |= FAN_MARK_DONT_FOLLOW;
    return n;
  }
  if (number_after(line, " mnt_id:", 16, number)) {
    mark.object = static_cast<uint32_t>(MarkedObject::kMount);
    return find_mount_point(mounts, number, 0, name);
  }
  if (number_after(line, " mnt_ns:", 10, number)) {
    mark.object = static_cast<uint32_t>(MarkedObject::kMountNamespace);
    struct stat own;
    if (sys::call(__NR_newfstatat, AT_FDCWD, kOwnMounts, &own, 0) != 0 || own.st_ino != number) return 0;
    std::memcpy(name, kOwnMounts, std::strlen(kOwnMounts) + 1);
    return std::strlen(kOwnMounts);
  }
  mark.object = static_cast<uint32_t>(MarkedObject::kFileSystem);
  return parse_device(line, device) ? find_mount_point(mounts, 0, device, name) : 0;
}

const char* what_is_marked(const FanotifyMarkDetail& mark) {
  switch (static_cast<MarkedObject>(mark.object)) {
    case MarkedObject::kFile:
      return "file";
    case MarkedObject::kMount:
      return "mount";
    case MarkedObject::kFileSystem:
      return "file system";
    case MarkedObject::kMountNamespace:
      return "mount namespace";
  }
  return "?";
}

}  // namespace

bool gives_permissions(std::string_view info) {
  uint64_t flags = 0;
  return number_after(group_line(info), " flags:", 16, flags) &&
         (flags & (FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT)) != 0;
}

void put_fanotify_marks(const CapturedDescriptor& d, std::string_view mounts, DescriptorNotes& notes,
                        ByteWriter& out) {
  uint64_t flags = 0, event_flags = 0;
  const std::string_view group = group_line(d.watches);
  if (!number_after(group, " flags:", 16, flags) || !number_after(group, " event-flags:", 16, event_flags)) {
    (void)notes.add(kChanged, "descriptor {} (fanotify): what it watches cannot be read (fdinfo)", d.fd);
    return;
  }
  out.put(DetailHeader{static_cast<uint32_t>(kFanotifyGroupDetail), sizeof(FanotifyGroupDetail)});
  out.put(FanotifyGroupDetail{static_cast<uint32_t>(flags), static_cast<uint32_t>(event_flags),
                              static_cast<uint32_t>(fanotify_groups::made_by()), 0});
  std::string_view text = d.watches, line;
  while (next_line(text, line)) {
    FanotifyMarkDetail mark{};
    uint64_t mark_flags = 0;
    if (!line.starts_with(kMark) || line.starts_with(kGroup) ||
        !number_after(line, " mflags:", 16, mark_flags) || !number_after(line, " mask:", 16, mark.mask) ||
        !number_after(line, " ignored_mask:", 16, mark.ignored))
      continue;
    mark.flags = static_cast<uint32_t>(mark_flags);
    char name[kWatchedNameBytes];
    const size_t length = find_place(line, mounts, mark, name);
    if (length == 0) {
      (void)notes.add(kChanged,
                      "descriptor {} (fanotify): a mark is on a {} that no known name leads to: it is lost "
                      "after a restart ({})",
                      d.fd, what_is_marked(mark), line.substr(kMark.size(), 40));
      continue;
    }
    mark.path_len = static_cast<uint32_t>(length);
    out.put(DetailHeader{static_cast<uint32_t>(kFanotifyMarkDetail),
                         static_cast<uint32_t>(sizeof(mark)) + padded_path(length)});
    out.put(mark);
    put_padded_path(name, length, out);
  }
}

}  // namespace ckpt
