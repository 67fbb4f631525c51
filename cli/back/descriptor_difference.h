// What has to be done to a program's descriptors so that they are as an image says. What is still open stays
// the same open file; what was closed is made again, as a restart makes it, and handed over.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/back_protocol.h"
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
  std::vector<std::string> cannot;  // what cannot go back: said before anything is changed
  int first_free = 3;
};

Result<DescriptorDifference> compare_descriptors(const ImageMeta& then, const ImageMeta& now, pid_t pid,
                                                 const DescriptorOptions& options);

}  // namespace ckpt::cli
