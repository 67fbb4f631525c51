// What the processes of a job had in common at a checkpoint: which open files of each, which memory.
//
// Owner: cli. Ordinary code, one thread. Callers: the descriptors' difference, ChannelPlan, ProcessBack.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "image/read/image_meta.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

// Of one process. Alone: all of it empty.
struct SharedParts {
  bool of_job = false;
  std::set<uint32_t> files;    // open files in which others have a part, by id
  std::set<uint64_t> objects;  // shared memory that others map as well
};

// By member, in the order of `members`: pid and image of each. An open file is shared if others have it, too,
// or have the other end of the connection. An open file is also shared if others have the same object by an
// open file of their own (the other end of a pipe, a memfd).
std::vector<SharedParts> find_shared_parts(const Manifest& manifest,
                                           const std::vector<std::pair<int, const ImageMeta*>>& members);

}  // namespace ckpt::cli
