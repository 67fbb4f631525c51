// A checkpoint that a keeper holds, once more on a disk: images full, whatever increments they were, so that
// it needs nothing but its own directory to come back.
//
// Owner: cli. Ordinary code, one thread. Callers: the keeper, and the process that saves.
// Never: leaves half of one under its name; removes an older one before the newer is complete.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace ckpt::cli {

// The sequence in the name of a complete image or a job's checkpoint, "count.12.000004.ckpt",
// "sh.000004.job", and what comes before it. False: it is no such name.
bool parse_checkpoint_name(const std::string& name, std::string& program, uint64_t& sequence);

// from: the keeper's directory, as a path of this process. name: of an image or a job's checkpoint in it. to:
// a directory of images (0700, this user's). Of the same run the newest `keep` stay there. Bytes on the disk.
// kNotFound: the keeper has given it up meanwhile.
Result<uint64_t> save_checkpoint(const std::string& from, const std::string& name, const std::string& to,
                                 uint32_t keep);

}  // namespace ckpt::cli
