// What a process hands to those that it starts, besides its environment: the mask of new files, and limits.
// Tasks on other hosts get it from the launcher, as with Slurm's srun (its PropagateResourceLimits).
//
// Owner:     cluster/srun. One thread.
// Callers:   the launcher takes it, a node gives it to its tasks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::cluster::srun {

struct Inherited {
  mode_t umask = 022;
  std::vector<std::pair<int, uint64_t>> limits;  // RLIMIT_*: the soft one
};
// Of this process. Nothing is changed meanwhile, as umask(2) would.
Inherited read_inherited();
// In a child, before execve: a limit that is above the host's hard one becomes that.
void set_limits(const Inherited& wanted);

std::string write_inherited(const Inherited& inherited);
bool read_inherited(const std::string& text, Inherited& inherited);

// Descriptors that a script has open are not those of a step: from here on no program that is started gets
// them.
void close_descriptors_at_exec();

}  // namespace ckpt::cluster::srun
