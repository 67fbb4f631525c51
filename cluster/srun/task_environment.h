// The variables that slurmstepd would set for the tasks of a step.
//
// Owner:     cluster/srun. One thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/srun/step.h"

namespace ckpt::cluster::srun {

// NAME=value of all tasks: the environment of ckpt-srun, as --export has it, and what the step has.
std::vector<std::string> environment_of_step(const Step& step, char** environment);
// place: of the task on its node. What is known where the task is started is added there (SLURM_TASK_PID, PMI_FD).
std::map<std::string, std::string> environment_of_task(const Step& step, int node, int place, int task);

// Of this host: a task has them as the process has that starts it there.
bool is_of_host(std::string_view variable);

}  // namespace ckpt::cluster::srun
