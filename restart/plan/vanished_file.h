// Files that the program had mapped and that are gone, of which the image has all: made again under their
// names.
//
// Owner:     restart. Callers: ckpt-restart, which only asks; the child, which makes them.
// Never:     follows a link, writes into a directory that somebody else could have prepared.
#pragma once

#include <string>

#include "base/result.h"
#include "image/read/image_meta.h"

namespace ckpt {

// POSIX shared memory. Pages that the image does not have are zeros.
bool is_shared_memory_file(const ParsedMapping& mapping);

// Does the image have all that the file had?
bool can_be_made_again(const ParsedMapping& mapping);

// A descriptor, for reading and writing, of a new file of the old size, mode 0600, that belongs to the
// program's user; its directory is made (0700) if that alone is missing. kFileChanged: it cannot be made, or
// there is one now.
Result<int> make_again(const ParsedMapping& mapping, const ProcessRecord& process);

}  // namespace ckpt
