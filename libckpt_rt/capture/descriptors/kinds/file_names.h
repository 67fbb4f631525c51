// By which names the program's open files are found again.
//
// Owner:     DescriptorCapture. Callers: the agent. Directories are searched only while the program runs
//            (DescriptorAccess::stands).
// Never:     opens a file of the program.
#pragma once

#include <string_view>

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class FileNames {
 public:
  FileNames(OpenFiles& files, DescriptorAccess& access) : files_(files), access_(access) {}
  FileNames(const FileNames&) = delete;
  FileNames& operator=(const FileNames&) = delete;

  // The image directory, or -1: links to files that are kept in it (image/format/saved_file_names.h) are no
  // other names.
  void set_saved_files(int directory, bool of_job) {
    saved_files_ = directory;
    saved_in_job_ = of_job;
  }
  // The link is kept as the path, without the kernel's " (deleted)"; d.named says whether it leads to
  // this very file.
  Result<void> read_path(CapturedDescriptor& d);
  // Called while the program runs. Links that are saved files of images do not count as names.
  bool has_one_name(const CapturedDescriptor& d) const;

  // When the program runs again.
  void refresh_paths();
  void find_late_names(DescriptorContents& contents, DescriptorNotes& notes);

 private:
  bool has_names_of_others(const CapturedDescriptor& d) const;
  bool take_other_name(CapturedDescriptor& d, std::string_view removed);

  OpenFiles& files_;
  DescriptorAccess& access_;
  int saved_files_ = -1;
  bool saved_in_job_ = false;
};

}  // namespace ckpt
