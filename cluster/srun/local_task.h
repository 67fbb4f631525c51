// One task of a step, where it runs: the process, and our ends of its streams and its PMI socket.
//
// Owner:     cluster/srun, the half of ckpt-srun on each node. One thread.
// Never:     leaves a descriptor of ours to the task.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "cluster/srun/step.h"

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

// why, if it cannot be: nothing runs then.
bool start_task(const NodeOrder& order, const TaskOrder& wanted, LocalTask& task, std::string& why);

}  // namespace ckpt::cluster::srun
