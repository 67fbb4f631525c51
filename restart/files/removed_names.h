// What the program had open although its name had been removed by the checkpoint, made anew without a name:
// it has one for a moment, its own where that is free.
//
// Owner:     restart. Callers: DescriptorBuilder.
// Never:     takes a name that somebody has; leaves one behind.
#pragma once

#include <string>

#include "base/raii_fd.h"

namespace ckpt {

// Symbolic links on the way. What /proc has told of a file has none in it: one that is there now is
// somebody's trap.
enum class Links { kRefused, kFollowed };

// An empty directory, mode 0700, of this process's user. It has no name any more; `..` leads to where `path`
// was. Directories above that are missing were removed as well: so are those that are made for it. Not
// valid(): errno says why.
ScopedFd make_removed_directory(const std::string& path, Links links = Links::kRefused);

// The same of a symbolic link, opened by O_PATH.
ScopedFd make_removed_link(const std::string& path, const std::string& target, Links links = Links::kRefused);

}  // namespace ckpt
