// Whose images this process opens: all, or only those that nobody else decides about.
//
// An image is a program: whoever can write it, an image below it, or the directory in which those are looked
// for, decides what runs. So it is looked at before anything of the file is read.
//
// Owner:     image (reader half). Callers: main() of ckpt-restart, before any image is opened; then
//            ImageReader::open(), resolve_image(), and restart/plan for what is kept beside it.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt {

// From now on an image is refused that belongs to another user but root, or that others may write. An image
// in such a directory is refused as well.
void trust_own_images_only();

// Of the open file, whose name is `path`.
Result<void> check_trust(int fd, const std::string& path);
Result<void> check_directory_trust(const std::string& directory);
// Of the directory of files kept beside an image, and of the copies in it: a restart puts them where the
// program had them. There need not be one. A link is the file itself, so its owner is the file's and decides
// nothing.
Result<void> check_trust_in_saved_files(const std::string& directory);

}  // namespace ckpt
