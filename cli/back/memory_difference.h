// What has to be done to a program's memory so that it is as an image says: which mappings go, come or
// change, and which bytes are put back.
//
// Owner: cli. Ordinary code, one thread. Callers: ProcessBack.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/protocol/back_protocol.h"
#include "image/read/image_chain.h"

namespace ckpt::cli {

struct MemoryDifference {
  struct Op {
    BackMemoryOp op;
    std::string path;
  };
  std::vector<Op> ops;            // in the order in which they are carried out
  std::vector<AddrRange> wanted;  // of the image's memory: in address order, no overlap
};

// now: the program as it stands. unwritten: memory that is known to be as in the image. own: the library's
// mappings, which `now` has not. parts: the mappings as the kernel has them, which `now` joins. late: the
// library's data, in whole pages, which is put back last. shared: memory that other members of a job map,
// too. Errors name the memory that cannot be brought back.
Result<MemoryDifference> compare_memory(const ImageChain& image, const ImageMeta& now,
                                        const std::vector<AddrRange>& unwritten,
                                        const std::vector<AddrRange>& own,
                                        const std::vector<AddrRange>& parts, AddrRange late,
                                        const std::set<uint64_t>& shared);

// The memory that the image has, without what is in `unwritten`.
std::vector<AddrRange> wanted_memory(const ImageChain& image, const std::vector<AddrRange>& unwritten);

}  // namespace ckpt::cli
