// Which task of a step runs on which node.
//
// Owner:     cluster/srun. Callers: ckpt run, which looks whether it can be; ckpt-srun. Any thread.
// Never:     asks Slurm: all is in the variables that Slurm has set for the allocation.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cluster/srun/asked/options.h"

namespace ckpt::cluster::srun {

struct Allocation {
  std::string job_id;
  std::vector<std::string> nodes;
  std::vector<int> cpus;  // of each node; empty: not known
};
Result<Allocation> read_allocation(const Variables& variables);

struct Layout {
  std::vector<std::string> nodes;       // of the step
  std::vector<int> cpus;                // of each; empty: not known
  std::vector<std::vector<int>> tasks;  // of each node, by their place there
  std::vector<int> node_of;             // of each task

  int count() const { return static_cast<int>(node_of.size()); }
  std::vector<int> counts() const;
  // PMI_process_mapping, as MPICH reads it: (vector,(first node,nodes,tasks of each),...)
  std::string mapping() const;
};
Result<Layout> lay_out(const Options& options, const Allocation& allocation);

}  // namespace ckpt::cluster::srun
