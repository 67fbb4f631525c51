// Signals that a loop waits for together with its descriptors: blocked but while it waits in ppoll(2).
//
// Owner:     cluster/srun. One thread a process.
// Callers:   the launcher and the nodes.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace ckpt::cluster::srun {

// From here on they come at wait_mask() only. A signal that the caller has ignored stays so.
void take_signals(std::initializer_list<int> signals);
const sigset_t* wait_mask();
// True once for each time that it came, or for several together.
bool has_come(int signal);
// In a child, before execve.
void give_signals_back();

}  // namespace ckpt::cluster::srun
