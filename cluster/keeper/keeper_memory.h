// The memory of a keeper: a file system in memory that has no name anywhere, of a bounded size.
//
// A tmpfs that is mounted nowhere (fsmount(2)): only a process with a descriptor of its directory reaches it.
// No right is needed: without CAP_SYS_ADMIN a child makes it in a user namespace of its own and hands the
// descriptor over. The kernel frees it with the last descriptor: the keeper's, or that of a program that
// still writes or reads.
//
// Owner:     the keeper process. Ordinary C++, its main thread.
// Callers:   the keeper: when it starts, and KeeperServer for each request.
// Never:     leaves anything behind in a file system that others see.
#pragma once

#include <string>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::keeper {

struct Memory {
  ScopedFd images;          // the directory for images, 0700; the kernel names it /keeper:NAME
  ScopedFd file_system;     // its root
  bool huge_pages = false;  // where a file is large enough for one
};

// kUnavailable: the kernel or the container allows no such file system.
Result<Memory> make_memory(const std::string& name, uint64_t bound_bytes);

struct Use {
  uint64_t bound_bytes = 0, used_bytes = 0;
};
Use use_of(const Memory& memory);

// Takes so many bytes of memory once and gives them back: in a virtual machine the first use of memory costs
// 20 times what a later use does. At low priority, by huge pages; ends early when less than an eighth of the
// memory of the machine, or of a control group, is left, or when *stop. Returns how many bytes it took. For a
// thread of its own.
uint64_t touch_memory(uint64_t bytes, const bool volatile* stop);

}  // namespace ckpt::keeper
