// What the user has told MPI and the libraries below it (Open MPI, UCX, libfabric, MPICH) of networks: in the
// environment, in their files, on the launcher's command line.
//
// Owner: cli. Ordinary code, any thread. Callers: adapters.cc, ckpt run, the agent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace ckpt::cli {

struct MpiSetting {
  std::string value;
  std::string where;  // "the environment", a file, "the command line"
};
// By the variable that would set it: OMPI_MCA_pml, UCX_TLS, FI_PROVIDER.
using MpiSettings = std::map<std::string, MpiSetting>;

// The environment, and the files that Open MPI and UCX read on this host in this directory; the environment
// wins, as it does with them.
MpiSettings mpi_settings_here();
// With those of the launcher's line (--mca, -x, -genv), which win over both.
MpiSettings mpi_settings_of(const std::vector<std::string>& program);

// Variables of this environment that tell MPI something, and are nobody's but the user's: none in a rank of
// MPI. Where agents are started by ssh, they are not in the environments of those hosts.
std::map<std::string, std::string> mpi_variables();

// A setting by which messages would go through an adapter. adapters: device files (adapters_here()), of any
// host. open_mpi: it is Open MPI that is started. "": there is none.
std::string setting_for_adapters(const MpiSettings& settings, const std::vector<std::string>& adapters,
                                 bool open_mpi);

// "^a,b" and "^b,c" are "^a,b,c". "": one of them is no list of what is left out.
std::string left_out_by_both(const std::string& one, const std::string& other);

}  // namespace ckpt::cli
