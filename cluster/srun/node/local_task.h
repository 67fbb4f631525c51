// One task of a step, where it runs: the process, and our ends of its streams and its PMI socket.
//
// Owner:     cluster/srun, the half of ckpt-srun on each node. One thread.
// Callers:   the node.
// Never:     leaves a descriptor of ours to the task.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "cluster/srun/asked/step.h"

namespace ckpt::cluster::srun {

struct LocalTask {
  int number = 0;  // of the step
  pid_t pid = -1;
  bool ended = false;
  ScopedFd in, out, err, pmi;  // our ends; not valid: a file, closed, or none
  std::string input;           // came for it, and was not read by it yet
  bool input_ends = false;
  std::string answers;  // of PMI, not written yet
  bool pmi_ends = false;
};

// Files for output that tasks of this node share, by their names: opened once, or each would write over what
// others have written.
using SharedFiles = std::map<std::string, ScopedFd>;
// why, if it cannot be: nothing runs then.
bool start_task(const NodeOrder& order, const TaskOrder& wanted, SharedFiles& files, LocalTask& task,
                std::string& why);
// To its process group; to the task alone if it has gone to another one.
void signal_task(const LocalTask& task, int signal);

}  // namespace ckpt::cluster::srun
