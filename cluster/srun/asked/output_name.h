// Names of files for the streams of tasks: "out.%j.%t", as srun(1) has them under "filename pattern".
//
// Owner:     cluster/srun. Pure. Any thread.
// Callers:   the launcher, and who makes the step.
#pragma once

#include <string>

namespace ckpt::cluster::srun {

struct Step;

// all, none, or the number of a task: no file.
bool is_file(const std::string& stream);
// Each task, or each node, has a file of its own: it is opened there.
bool is_opened_by_node(const std::string& name);
// task, node: -1 for a file of the whole step.
std::string file_name(const std::string& name, const Step& step, int task, int node);

}  // namespace ckpt::cluster::srun
