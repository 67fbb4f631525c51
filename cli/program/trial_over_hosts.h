// ckpt check -- PROGRAM where the program starts on several hosts: srun or mpirun in an allocation, or
// --hosts.
//
// Owner: cli. Ordinary code, one thread. The job is ended on all hosts, and its images are removed there.
// Callers: `ckpt check`.
#pragma once

#include "cli/program/trial.h"

namespace ckpt::cli {

// hosts, launch: as of settle_hosts() (cli/hosts/job/where_it_starts.h), not empty. program: as the user gave
// it.
Trial try_over_hosts(const std::string& hosts, const std::string& launch,
                     const std::vector<std::string>& program, const TrialMoment& moment);

}  // namespace ckpt::cli
