// Facts that neither the image nor the program tells `ckpt back`: from /proc, and about the image's files.
//
// Owner: cli. Ordinary code, one thread. Callers: ProcessBack.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "image/read/image_chain.h"

namespace ckpt::cli {

// The machine's MemAvailable, in bytes; a guess where the kernel does not say.
uint64_t available_memory();
// An image decides what runs: refuses one that another user but root owns, or that others may write.
Result<void> check_owner(const ImageChain& image, bool trust);
// Children that were born since the checkpoint, a line for each: they would live on beside a parent that does
// not know them. then: process ids of children that it had at the checkpoint.
std::vector<std::string> children_since(pid_t pid, const std::set<pid_t>& then, int64_t realtime_ns);
// The program's mappings, as the kernel lists them.
std::vector<AddrRange> kernel_mappings(pid_t pid);

}  // namespace ckpt::cli
