// Every N-th checkpoint that a keeper holds goes to a disk as well: a process of the keeper's, at low
// priority, that sees by inotify what is committed in the keeper's memory. The program waits for nothing of
// it.
//
// Owner: cli, the keeper. Ends with the keeper. Callers: the keeper, when it starts.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

struct DiskOptions {
  std::string directory;  // absolute
  uint32_t every = 0;     // of the checkpoints of a program or job, by their number; 0: none
};

// What the process has done, and is told to do: in the keeper's directory, for whoever shows it.
struct DiskState {
  DiskOptions options;
  std::string saved, error;  // the newest that is on the disk; why the last one is not
  int64_t time_ns = 0;       // CLOCK_REALTIME, of either
};
// keeper_directory: as a path of this process. No directory in the options: there is none.
DiskState read_disk_state(const std::string& keeper_directory);

// The process; keeper_directory: open. Its id.
Result<int> start_disk_watch(int keeper_directory, const DiskOptions& options);

}  // namespace ckpt::cli
