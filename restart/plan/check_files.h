// Are the files that the image's mappings refer to still those of the saved process?
//
// Owner:     restart. Callers: ckpt-restart, before anything is touched.
// Never:     changes a file.
// A file is the same when its ELF build id is; without one, when its XXH3 is if that was recorded,
// else its size and modification time. A file that a process of the job may write through a shared
// mapping may differ: what the image holds of it is written back.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "image/read/image_meta.h"
#include "restart/descriptors/vanished_file.h"

namespace ckpt {

// By name: what some process of the job may write through a shared mapping. It writes back what its image has.
using WrittenFiles = std::set<std::string, std::less<>>;
void add_written_files(const ImageMeta& meta, WrittenFiles& files);

// The first difference, as kFileChanged naming the file.
Result<void> check_mapped_files(const ImageMeta& meta, const ReturningFiles& returning,
                                const WrittenFiles& written);

}  // namespace ckpt
