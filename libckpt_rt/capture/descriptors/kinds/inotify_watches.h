// Watches of inotify(7). fdinfo tells which inodes are watched. By which names they are found again is looked
// for when the program runs on: those that it used (watch_names.h), else, with the right to do so
// (CAP_DAC_READ_SEARCH), the one that the file's handle leads to.
//
// Owner:     DescriptorCapture. Callers: the agent; name_all: also a forked child that writes the image.
// Never:     reads an event.
#pragma once

#include <string_view>

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class InotifyWatches {
 public:
  InotifyWatches(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes)
      : files_(files), access_(access), notes_(notes) {}
  InotifyWatches(const InotifyWatches&) = delete;
  InotifyWatches& operator=(const InotifyWatches&) = delete;

  // What fdinfo says of them, and whether events wait, which cannot be read without taking them.
  Result<void> keep(CapturedDescriptor& d, std::string_view info);
  // When threads run again, or in the forked child that writes the image.
  void name_all();

 private:
  std::string_view read_mounts() const;

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
};

}  // namespace ckpt
