#include "libckpt_rt/capture/descriptors/kinds/file_watches.h"

#include <sys/inotify.h>

#include "base/memory/bytes.h"
#include "libckpt_rt/capture/descriptors/kinds/watched_names.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

// Watches of inotify(7), as fdinfo tells them.

namespace ckpt {
namespace {

// "inotify wd:1 ino:2c sdev:800001 mask:2 ignored_mask:0 fhandle-bytes:8 fhandle-type:1
// f_handle:2c000000a1b2c3d4"
struct Watch {
  int32_t number;
  uint32_t mask;
  WatchedFile file;
};

bool parse(std::string_view line, Watch& watch) {
  uint64_t number = 0, mask = 0;
  if (!line.starts_with("inotify ") || !number_after(line, "wd:", 16, number) ||
      !number_after(line, " mask:", 16, mask) || !parse_watched(line, watch.file))
    return false;
  watch.number = static_cast<int32_t>(number);
  watch.mask = static_cast<uint32_t>(mask);
  return true;
}

}  // namespace

void put_inotify_watches(const CapturedDescriptor& d, std::string_view mounts, DescriptorNotes& notes,
                         ByteWriter& out) {
  std::string_view text = d.watches, line;
  while (next_line(text, line)) {
    Watch watch{};
    if (!parse(line, watch)) continue;
    char name[kWatchedNameBytes];
    const size_t length = find_watched_name(mounts, watch.file, name);
    if (length == 0) {
      (void)notes.add(kChanged,
                      "descriptor {} (inotify): watch {} is on a file whose name is not known (inode {}): "
                      "after a restart the program is told that the file is gone",
                      d.fd, watch.number, watch.file.inode);
    }
    if (watch.file.is_link) watch.mask |= IN_DONT_FOLLOW;
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kInotifyWatch),
                         static_cast<uint32_t>(sizeof(InotifyWatchDetail)) + padded_path(length)});
    out.put(InotifyWatchDetail{watch.number, watch.mask, static_cast<uint32_t>(length), 0});
    put_padded_path(name, length, out);
  }
}

}  // namespace ckpt
