// --multi-prog: a file that says which tasks run what.
//
//   0      ./master
//   1-3,5  ./worker %t %o          %t: the task, %o: its place in the line's tasks
//   *      ./other
//
// Owner:     cluster/srun. One thread.
// Callers:   who makes the step (step.cc).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ckpt::cluster::srun {

// command: the file, and arguments for all. The command of each task.
Result<std::vector<std::vector<std::string>>> read_multi_prog(const std::vector<std::string>& command,
                                                              int tasks);
Result<std::vector<std::vector<std::string>>> parse_multi_prog(const std::string& text,
                                                               const std::vector<std::string>& command,
                                                               int tasks);

}  // namespace ckpt::cluster::srun
