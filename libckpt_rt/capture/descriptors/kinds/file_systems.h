// File systems whose files the kernel makes anew for each look: what is read of them is no content that could
// be saved.
//
// Owner:     libckpt_rt, descriptors. Callers: the agent, also in the stop.
// Never:     opens the file.
#pragma once

#include <cstdint>

namespace ckpt {

constexpr int64_t kMessageQueues = 0x19800202;  // f_type of statfs(2)

// f_type of statfs(2): a name there leads to a new inode each time, perhaps never to the one that is open.
bool has_volatile_inodes(int64_t type);
// Where a regular file is not bytes that could be copied.
bool has_no_bytes(int64_t type);
// The file is one of these, or of a namespace or without a name; so is one that cannot be asked about.
bool is_made_by_the_kernel(const char* path);

}  // namespace ckpt
