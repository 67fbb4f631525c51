// The variables that slurmstepd would set for the tasks of a step.
//
// Owner:     cluster/srun. One thread.
// Callers:   the node, and who makes the step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/srun/asked/step.h"

namespace ckpt::cluster::srun {

// NAME=value of all tasks: the environment of ckpt-srun, as --export has it, and what the step has.
std::vector<std::string> environment_of_step(const Step& step, char** environment);
// place: of the task on its node. Variables that are known only where the task is started are added there
// (SLURM_TASK_PID, PMI_FD).
std::map<std::string, std::string> environment_of_task(const Step& step, int node, int place, int task);

// All of a task but SLURM_TASK_PID and PMI_FD, each name once. host: of the process that starts it there:
// CKPT_* are taken from it, and LD_PRELOAD behind what the user has there.
std::vector<std::string> environment_here(const std::vector<std::string>& of_step,
                                          const std::map<std::string, std::string>& of_task, char** host);

}  // namespace ckpt::cluster::srun
