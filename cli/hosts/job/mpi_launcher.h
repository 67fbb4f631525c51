// mpirun and its kin, which start programs on other hosts: what of them `ckpt run` has to know.
//
// Owner: cli. Ordinary code, any thread. Callers: `ckpt run`, mpi_settings.cc.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ckpt::cli {

// mpirun, mpiexec, orterun, and these names with an ending (mpirun.openmpi, mpiexec.hydra); or a path of one.
bool is_mpi_launcher(const std::string& program);

// The launcher is Open MPI's, by the name of the file behind all links.
bool is_open_mpi(const std::string& launcher);

// Variables that its line sets for MPI: --mca NAME VALUE, -x NAME=VALUE, -genv NAME VALUE. In the order of
// the line.
std::vector<std::pair<std::string, std::string>> settings_on_line(const std::vector<std::string>& words);

// A program that a launcher is to start, and that the library cannot be in, is refused by name. Of each part
// of the line (`:`) the program is the first word that is neither an option nor an option's value. Behind an
// option of which it is not known how many values it has nothing is refused here, and the first checkpoint
// names it.
Result<void> check_programs_of_launcher(const std::vector<std::string>& words);

}  // namespace ckpt::cli
