// What `ckpt back` has to know beside the image and the program's own answers: from /proc, and of the files.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "image/read/image_chain.h"

namespace ckpt::cli {

// Of the machine, bytes; a guess where the kernel does not say.
uint64_t available_memory();
// An image decides what runs: nobody else may have written it.
Result<void> check_owner(const ImageChain& image);
// Children that were born since the checkpoint: they would live on beside a parent that has not made them. A
// line for each.
std::vector<std::string> children_since(pid_t pid, int64_t realtime_ns);
// The program's mappings, as the kernel lists them.
std::vector<AddrRange> kernel_mappings(pid_t pid);

}  // namespace ckpt::cli
