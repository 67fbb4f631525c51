// What inotify(7) and fanotify(7) watch. fdinfo tells which inodes are watched. By which names they are found
// again is looked for when the program runs on (watched_names.h).
//
// Owner:     DescriptorCapture. Callers: the agent; name_all: also a forked child that writes the image.
// Never:     reads an event.
#pragma once

#include <string_view>

#include "base/memory/bytes.h"
#include "base/result.h"
#include "image/format/records/fanotify_records.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class FileWatches {
 public:
  FileWatches(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes)
      : files_(files), access_(access), notes_(notes) {}
  FileWatches(const FileWatches&) = delete;
  FileWatches& operator=(const FileWatches&) = delete;

  // Ahead of a stop.
  void begin();
  // First thing in it. kUnsupported: a group that others ask for permission has been made since begin().
  Result<void> check_stopped(int tid) const;
  // What fdinfo says of them, and whether events wait, which cannot be read without taking them.
  // kUnsupported: a group of fanotify that others ask for permission.
  Result<void> keep(CapturedDescriptor& d, std::string_view info);
  // When threads run again, or in the forked child that writes the image.
  void name_all();

 private:
  std::string_view read_mounts() const;

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
  uint32_t permissions_ = 0;  // fanotify_groups::permissions()
};

// A group of fanotify that others ask for permission (FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT): while the
// program stands, nobody answers who opens a file. kUnsupported: the thread's table has one.
Result<void> refuse_permission_groups(Arena& arena, int tid);
// The same in a stop, which looks only if libc's functions may have made one since
// fanotify_groups::permissions() was this.
Result<void> refuse_new_permissions(Arena& arena, int tid, uint32_t before);

// For `text`, which is fdinfo: one detail for each watch. mounts: /proc/self/mountinfo.
void put_inotify_watches(const CapturedDescriptor& d, std::string_view mounts, DescriptorNotes& notes,
                         ByteWriter& out);
// One detail for the group, and one for each mark.
void put_fanotify_marks(const CapturedDescriptor& d, std::string_view mounts, DescriptorNotes& notes,
                        ByteWriter& out);
// info: fdinfo of a group.
bool gives_permissions(std::string_view info);

// A path behind a detail, whose header has counted it padded.
inline uint32_t padded_path(size_t length) { return static_cast<uint32_t>((length + 7) & ~size_t{7}); }
void put_padded_path(const char* path, size_t length, ByteWriter& out);

}  // namespace ckpt
