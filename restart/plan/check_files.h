// Are the files that the image's mappings refer to still those of the saved process?
//
// Owner:     restart. Callers: ckpt-restart, before anything is touched.
// Never:     changes a file.
// A file is the same when it has the same size and the same ELF build id. Without a build id its XXH3
// decides, if that was recorded; of a file larger than kHashedWhole, of which only pieces are hashed, the
// modification time must be the same as well. Without both the modification time decides. A file that a
// process of the job may write through a shared mapping may differ: what the image holds of it is written
// back.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "image/read/image_meta.h"
#include "restart/files/vanished_file.h"

namespace ckpt {

// By name: what some process of the job may write through a shared mapping. That process writes back what its
// image has.
using WrittenFiles = std::set<std::string, std::less<>>;
void add_written_files(const ImageMeta& meta, WrittenFiles& files);

// The first difference, as kFileChanged naming the file.
Result<void> check_mapped_files(const ImageMeta& meta, const ReturningFiles& returning,
                                const WrittenFiles& written);

}  // namespace ckpt
