// A step as it was asked for, laid out and numbered; and what of it one node is told.
//
// Owner:     cluster/srun. Callers: ckpt-srun makes it, its other half on each node reads its own part. One
//            thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/srun/asked/layout.h"
#include "cluster/srun/node/inherited.h"

namespace ckpt::cluster::srun {

struct Step {
  Options options;
  Allocation allocation;
  Layout layout;
  int number = 0;      // SLURM_STEP_ID: another step of the allocation may have the same
  std::string random;  // which no other step has
  std::string directory;
  std::vector<std::vector<std::string>> programs;  // the command of each task, or one for all

  std::string id() const { return allocation.job_id + "." + std::to_string(number); }
  const std::vector<std::string>& program_of(int task) const {
    return programs.size() == 1 ? programs[0] : programs[static_cast<size_t>(task)];
  }
};

// From the words of the command line and the environment. Starts nothing, and asks nobody.
Result<Step> read_step(const std::vector<std::string>& words, const Variables& variables);

struct TaskOrder {
  int task = 0;
  std::vector<std::string> program;
  std::string input, output, error;  // names of files that the node opens; "": the launcher has the other end
  std::string processors;            // as of order_of_binding()
  std::map<std::string, std::string> environment;  // what only this task has
};
// What the PMIx server of a node is told of the step.
struct PmixStep {
  std::string name;   // of its name space
  std::string nodes;  // "h1,h2"
  std::string tasks;  // of each node, by their numbers: "0,1;2,3"
  int node = 0;       // this one, by its place
  int count = 0;      // of all tasks; 0: no PMIx is wanted
};
struct NodeOrder {
  std::string directory;
  bool append = false, unbuffered = false, has_pmi = false;
  std::vector<std::string> environment;  // NAME=value, of all tasks
  Inherited inherited;
  PmixStep pmix;
  std::vector<TaskOrder> tasks;
};
NodeOrder order_for(const Step& step, int node, char** environment);
std::string write_order(const NodeOrder& order);
bool read_order(std::string_view bytes, NodeOrder& order);

}  // namespace ckpt::cluster::srun
