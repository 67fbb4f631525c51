// Every N-th checkpoint that a keeper holds goes to a disk as well: a process of the keeper's, at low
// priority, that sees by inotify what is committed in the keeper's memory. The program waits for nothing of
// it.
//
// Owner: cli, the keeper. Ends with the keeper. Callers: the keeper, when it starts.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

struct DiskWishes {
  std::string directory;  // absolute
  uint32_t every = 0;     // of the checkpoints of a program or job, by their number; 0: none
};

// What the process has done, and is told to do: in the keeper's directory, for whoever shows it.
struct DiskState {
  DiskWishes wishes;
  std::string saved, error;  // the newest that is on the disk; why the last one is not
  int64_t time_ns = 0;       // CLOCK_REALTIME, of either
};
// kept: the keeper's directory, as a path of this process. No wishes: there is none.
DiskState read_disk_state(const std::string& kept);

// The process; kept: the keeper's directory, open. Its id.
Result<int> start_disk_watch(int kept, const DiskWishes& wishes);

}  // namespace ckpt::cli
