// Adapters of fast networks on this host, through which no message of a job may go: their queues are in no
// image.
//
// Owner: cli. Callers: ckpt run, the agent; of the words the head. Ordinary code, any thread.
#pragma once

#include <string>
#include <vector>

namespace ckpt::cli {

// Their device files (base/machine/known_devices.h), each kind once.
std::vector<std::string> adapters_here();
// If there are such adapters, all programs that are started from now on go by TCP and ordinary shared memory:
// Open MPI, MPICH and what else is above UCX or libfabric. What the user has set himself stays.
void keep_mpi_off_adapters();
// A line for the user: what was found there, and what follows.
std::string words_on_adapters(const std::string& host, const std::vector<std::string>& adapters);

}  // namespace ckpt::cli
