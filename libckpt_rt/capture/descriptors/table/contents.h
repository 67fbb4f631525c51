// Bytes that the image gets with the descriptors: of files, pipes, messages.
//
// Owner:     DescriptorCapture. Callers: the agent. The bytes lie in the capture's arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory/arena.h"

namespace ckpt {

struct DescriptorContent {
  uint32_t open_file;
  uint64_t object, offset;
  const std::byte* data;
  uint64_t length;  // 0: none of it is written
};

using DescriptorContents = ArenaVector<DescriptorContent>;

}  // namespace ckpt
