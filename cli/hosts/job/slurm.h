// A job in an allocation of Slurm: which hosts it has, how agents are started there, and srun, in whose place
// ckpt-srun comes (docs/srun.md).
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt run`, `ckpt hosts`, the agent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/job/hosts_run.h"
#include "cluster/srun/asked/step.h"

namespace ckpt::cli {

// "srun", or a path of it.
bool is_srun(const std::string& program);
// What the line asks srun for, in this allocation. A line that ckpt-srun would refuse is an error here,
// before anything is started.
Result<cluster::srun::Step> read_srun(const std::vector<std::string>& program);

// How agents are started in an allocation, unless --launch says it: steps beside all others, with all
// processors of their nodes.
inline constexpr const char* kSlurmLaunch =
    "env -u SLURM_LABELIO -u SLURM_STDINMODE -u SLURM_STDOUTMODE -u SLURM_STDERRMODE -u SLURM_CPUS_PER_TASK "
    "-u SLURM_NTASKS_PER_NODE -u SLURM_DISTRIBUTION "
    "srun --quiet --overlap --mpi=none --export=ALL --nodes=1 --ntasks=1 --nodelist={host}";

// In place of names of hosts: all nodes of the allocation.
inline constexpr const char* kAllocation = "allocation";
// And: this host alone, whatever Slurm has given.
inline constexpr const char* kNoHosts = "none";

// `ckpt run` was called by the batch script, or at the prompt of salloc: not by a task of srun, of which
// there may be many, and not by a process of a job.
bool may_use_allocation();
// The allocation has a node that is not this host: others as well, or, where salloc has a prompt on a login
// node, another one. False where there is none.
bool allocation_is_elsewhere();
// Where `hosts` is kAllocation: its nodes, and Slurm's own way to start agents, unless --launch says another.
Result<void> name_hosts(std::string& hosts, std::string& launch);

// Variables of the allocation, for the program: an agent that srun has started has those of its own step.
std::map<std::string, std::string> variables_of_allocation();

// The way of `ckpt run` to put srun aside for processes of the job: PATH begins with the directory of our
// srun, if it is installed.
void put_stand_ins_ahead();

}  // namespace ckpt::cli
