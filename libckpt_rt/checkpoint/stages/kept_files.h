// Files that the program has open are kept beside the image, in case they are removed or replaced before a
// restart: by a hard link where the image directory is on the same file system, else by a copy, if they are
// small and not being written.
//
// Owner:     one Attempt. Callers: the agent, the program running: ahead of the stop, and when the image is
//            durable, for what was opened in between.
// Never:     fails a checkpoint: what is not covered is in the log. Changes a byte of a file; a link changes
//            its count of links and its change time.
#pragma once

#include "base/arena.h"
#include "base/settings/settings.h"

namespace ckpt {

// directory: of the images; image: the name or path of the one; log: the directory of the log.
void keep_files(Arena& arena, int directory, const char* image, KeptFiles how, int log);

}  // namespace ckpt
