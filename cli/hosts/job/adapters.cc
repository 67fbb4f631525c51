#include "cli/hosts/job/adapters.h"

#include <fmt/ranges.h>
#include <glob.h>
#include <stdlib.h>

#include "base/machine/known_devices.h"

namespace ckpt::cli {

namespace {

// Those that any process may have there are not opened by MPI: rdma_cm, issm0.
std::string pattern_of(const KnownDevice& device) {
  const std::string start(device.start);
  return start.ends_with('/') ? start + "uverbs*" : start + "*";
}

}  // namespace

std::vector<std::string> adapters_here() {
  std::vector<std::string> found;
  for (const KnownDevice& device : kKnownDevices) {
    if (!device.carries_messages) continue;
    glob_t paths{};
    if (glob(pattern_of(device).c_str(), 0, nullptr, &paths) == 0 && paths.gl_pathc != 0)
      found.emplace_back(paths.gl_pathv[0]);
    globfree(&paths);
  }
  return found;
}

void keep_mpi_off_adapters() {
  if (adapters_here().empty()) return;
  // As kWayRoundFabrics and kWayRoundSharedCopies tell it.
  for (const auto& [name, value] : {std::pair("OMPI_MCA_pml", "^ucx,cm"),
                                    {"OMPI_MCA_btl", "^openib,uct,ofi,usnic"},
                                    {"OMPI_MCA_osc", "^ucx"},
                                    {"OMPI_MCA_btl_vader_single_copy_mechanism", "cma"},
                                    {"OMPI_MCA_smsc", "^xpmem,knem"},
                                    {"OMPI_MCA_coll", "^hcoll"},
                                    {"UCX_TLS", "tcp,self,sysv,posix,cma"},
                                    {"FI_PROVIDER", "tcp"}})
    setenv(name, value, 0);
}

std::string words_on_adapters(const std::string& host, const std::vector<std::string>& adapters) {
  return fmt::format(
      "{} has {}, which no checkpoint can hold: MPI is told to use TCP, unless you say "
      "otherwise (OMPI_MCA_pml, OMPI_MCA_btl, UCX_TLS, FI_PROVIDER)",
      host, fmt::join(adapters, ", "));
}

}  // namespace ckpt::cli
