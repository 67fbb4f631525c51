// Files that the program had mapped and that are gone, of which the image has all: made again under their
// names.
//
// Owner:     restart. Callers: ckpt-restart, which only asks; put_back_files(), which makes them: in the child,
// of a job in the planter, before there is a second process that could make the same file.
// Never:     follows a link, writes into a directory that somebody else could have prepared.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/result.h"
#include "image/read/image_meta.h"

namespace ckpt {

// POSIX shared memory. Pages that the image does not have are zeros.
bool is_shared_memory_file(const ParsedMapping& mapping);

// By name: does one mapping show all of the file?
using ReturningFiles = std::map<std::string, bool, std::less<>>;

// Adds those of this process that are gone and will be made again. A file that it could only read comes back
// by another process of its job, or not at all.
void add_returning_files(const ImageMeta& meta, ReturningFiles& files);

// A new file of the old size, mode 0600, that belongs to the program's user; its directory is made (0700) if
// that alone is missing. kFileChanged: it cannot be made, or there is one now.
Result<void> make_again(const ParsedMapping& mapping, const ProcessRecord& process);

}  // namespace ckpt
