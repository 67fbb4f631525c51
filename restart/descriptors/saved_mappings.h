// Files that the program had mapped, and that were removed or replaced since: what of them is kept beside the
// image (image/format/saved_file_names.h).
//
// Owner:     restart. Callers: ckpt-restart, which only looks; put_back: the child, of a job the planter; and
//            whoever opens the file.
// Never:     changes a file that is there.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "image/read/image_meta.h"
#include "restart/files/vanished_file.h"

namespace ckpt {

struct SavedMappings {
  std::string directory;     // of what is kept; empty: there is none
  ReturningFiles returning;  // files that are made again of the image, of all processes of the job

  // Where what is kept of the mapping's file is. Empty: its own name leads to it, or nothing is kept, or the
  // image has all of it (vanished_file.h). A copy only where the name leads nowhere.
  std::string of(const ParsedMapping& mapping) const;
};

// Those whose names are gone have them again, with the directories (0700) that are missing. kFileChanged:
// where one would be made others may write.
Result<void> put_back_mapped_files(const ImageMeta& meta, const SavedMappings& saved,
                                   const std::function<void(std::string_view)>& say);

}  // namespace ckpt
