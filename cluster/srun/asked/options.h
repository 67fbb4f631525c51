// What srun was asked for: its command line, and the variables that stand for options.
//
// Owner:     cluster/srun. Callers: ckpt run, which refuses before anything is started; ckpt-srun. One thread
//            (getopt).
// Never:     takes an option that it does not know, or cannot do: the error names it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cluster/srun/node/binding.h"

namespace ckpt::cluster::srun {

// The value of a variable, nullptr if it is not set.
using Variables = std::function<const char*(const char* name)>;

enum class Distribution { kBlock, kCyclic, kPlane };
enum class Mpi { kNone, kPmi2, kPmix };
// PMI-1 and PMI-2 are served beside PMIx, too: without any, MPICH's ranks would each be alone.
inline bool serves_pmi(Mpi mpi) { return mpi != Mpi::kNone; }

struct Options {
  int tasks = 0;  // 0, here and below: not said
  int nodes = 0;  // at most
  int least_nodes = 0;
  int tasks_per_node = 0;  // at most
  int cpus_per_task = 0;
  int relative = 0;               // leave out so many of the allocation's nodes
  std::string nodelist, exclude;  // as Slurm writes them
  Distribution distribution = Distribution::kBlock;
  int plane = 1;
  Mpi mpi = Mpi::kPmi2;
  std::string input = "all", output = "all",
              error;    // all, none, the number of a task, or the name of a file; error "": as output
  bool append = false;  // to these files
  bool label = false, unbuffered = false, quiet = false;
  bool multi_prog = false;  // the command is a file that says which tasks run what
  int kill_on_bad_exit = -1;
  int wait_s = 0;         // how long tasks may run on when the first has ended; 0: as long as they want
  int time_s = 0;         // how long the step may run
  std::string directory;  // where the tasks are started; "": here
  std::string exported = "ALL";  // --export
  std::string job_name;
  Binding binding;  // --cpu-bind
  std::vector<std::string> command;
};

// words: of the command line, without the first, "srun".
Result<Options> parse_options(const std::vector<std::string>& words, const Variables& variables);

}  // namespace ckpt::cluster::srun
