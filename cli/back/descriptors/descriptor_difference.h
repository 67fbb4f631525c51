// What has to be done to a program's descriptors so that they are as an image says. A file that is still open
// stays the same open file; one that was closed is made again, as a restart makes it, and sent to the
// program.
//
// Owner: cli. Ordinary code, one thread. Callers: ChannelPlan and ProcessBack.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/protocol/back_protocol.h"
#include "cli/back/descriptors/shared_parts.h"
#include "cli/back/descriptors/still_open.h"
#include "image/read/image_meta.h"
#include "restart/descriptors/descriptors.h"

namespace ckpt::cli {

struct DescriptorDifference {
  struct Op {
    BackDescriptorOp op;
    std::vector<std::byte> data;
  };
  std::vector<Op> ops;
  std::vector<ScopedFd> made;       // in the order in which the program gets them
  std::vector<std::string> cannot;  // descriptors that cannot go back, a line each; nothing is changed yet
  int first_free = 3;               // above all numbers in use then, now, or in between
  struct StillOpen {
    const ParsedOpenFile* now;
    int fd_now, fd;  // one number that it has now, and one that it will have
  };
  std::map<uint32_t, StillOpen> still_open;  // open files that are still open, by the image's id
};

// shared: open files in which other members of a job have a part, that goes back with this process. Those
// files must still be open; the caller puts back what is in them (channel_plan.h). replaced: open files that
// get their numbers, whatever is there now.
Result<DescriptorDifference> compare_descriptors(const ImageMeta& then, const ImageMeta& now, pid_t pid,
                                                 const DescriptorOptions& options, const SharedParts& shared,
                                                 ReplacedFiles replaced);

}  // namespace ckpt::cli
