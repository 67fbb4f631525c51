// How much memory may still be used: of the machine, and of the control groups that this process is in.
//
// Owner: cluster/keeper. Reads files of the kernel; any thread.
// Callers: KeeperMemory.
#pragma once

#include <cstdint>
#include <string>

namespace ckpt::keeper {

struct MemoryLeft {
  uint64_t all = 0, left = 0;  // bytes; of the control group that allows the least, where there is one
};
// root: "" but in tests, which have their own /proc and /sys/fs/cgroup below it.
MemoryLeft memory_left(const std::string& root = "");

}  // namespace ckpt::keeper
