// On which hosts a program is to start: as the user says, or as srun, mpirun and Slurm's allocation do.
//
// Owner: cli. Callers: ckpt run, ckpt check. Ordinary code, one thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ckpt::cli {

// hosts, launch: of the command line; "" in hosts: not said. Where hosts come out empty, the program starts
// here, in a job of this host: always if they were kNoHosts. program: srun becomes ckpt-srun. A program that
// can be refused before the start is refused here.
Result<void> settle_hosts(std::string& hosts, std::string& launch, std::vector<std::string>& program);

}  // namespace ckpt::cli
