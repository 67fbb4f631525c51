// Adapters of fast networks on this host, through which no message of a job may go: their queues are in no
// image.
//
// Owner: cli. Callers: ckpt run, the agent; of the words the head. Ordinary code, any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ckpt::cli {

// Their device files (base/machine/known_devices.h), each kind once.
std::vector<std::string> adapters_here();
// If there are such adapters, all programs that are started from now on go by TCP and ordinary shared memory:
// Open MPI, MPICH and what else is above UCX or libfabric. Settings of the user in the environment or in
// MPI's files stay. Of lists of what is not to be used (^a,b) both count.
void bar_mpi_from_adapters();
// An MPI that the user has told to use adapters, which the host has, is not started: refused with the words
// of the setting. Of any other program a line says it, for what it starts is not known.
Result<void> check_settings_for_adapters(const std::string& host, const std::vector<std::string>& adapters,
                                         const std::vector<std::string>& program);
// A line for the user: what was found there, and what follows.
std::string words_on_adapters(const std::string& host, const std::vector<std::string>& adapters);

}  // namespace ckpt::cli
