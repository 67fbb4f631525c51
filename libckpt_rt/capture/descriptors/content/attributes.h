// Attributes of a file without a name, which will be another one: those of the program's own, and an access
// list.
//
// Owner:     FileContents. Callers: the agent, in the stop.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class FileAttributes {
 public:
  FileAttributes(const OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes)
      : files_(files), access_(access), notes_(notes) {}
  FileAttributes(const FileAttributes&) = delete;
  FileAttributes& operator=(const FileAttributes&) = delete;

  void forget() { value_ = nullptr; }
  // Into its details.
  Result<void> take(CapturedDescriptor& d);

 private:
  const OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
  std::byte* value_ = nullptr;  // room for the longest value, of the arena
};

}  // namespace ckpt
