// Are the files that the image's mappings refer to still those of the saved process?
//
// Owner:     restart. Callers: ckpt-restart, before anything is touched.
// Never:     changes a file.
// A file is the same when it has the same size and the same ELF build id. Without a build id its XXH3
// decides, if that was recorded; of a file larger than kHashedWhole, of which only pieces are hashed, the
// modification time must be the same as well. Without both the modification time decides. A file that a
// process of the job may write through a shared mapping may differ: what the image holds of it is written
// back. So may one that a process has open and has changed in place: its bytes come back before it is mapped.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "image/read/image_meta.h"
#include "restart/descriptors/saved_mappings.h"
#include "restart/files/vanished_file.h"

namespace ckpt {

// written: by name, what some process of the job may write through a shared mapping (add_written_files()),
// and writes back as its image has it; and what is put back (add_files_put_back).
// The first difference, as kFileChanged naming the file. What is kept of a file is looked at in its place.
Result<void> check_mapped_files(const ImageMeta& meta, const ReturningFiles& returning,
                                const WrittenFiles& written, const SavedMappings& saved);

}  // namespace ckpt
