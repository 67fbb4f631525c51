#include "cli/hosts/job/adapters.h"

#include <fmt/ranges.h>
#include <glob.h>
#include <stdlib.h>

#include <cstdio>

#include "base/machine/known_devices.h"
#include "cli/hosts/job/mpi_launcher.h"
#include "cli/hosts/job/mpi_settings.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

// MPI does not open the devices there that any process may have: rdma_cm, issm0.
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

void bar_mpi_from_adapters() {
  if (adapters_here().empty()) return;
  const MpiSettings users = mpi_settings_here();
  // As kWayRoundFabrics and kWayRoundSharedCopies tell it. The last two let UCX be chosen over TCP, by who
  // wants it.
  for (const auto& [name, value] : {std::pair("OMPI_MCA_pml", "^ucx,cm"),
                                    {"OMPI_MCA_btl", "^openib,uct,ofi,usnic"},
                                    {"OMPI_MCA_osc", "^ucx"},
                                    {"OMPI_MCA_btl_vader_single_copy_mechanism", "cma"},
                                    {"OMPI_MCA_smsc", "^xpmem,knem"},
                                    {"OMPI_MCA_coll", "^hcoll"},
                                    {"UCX_TLS", "tcp,self,sysv,posix,cma"},
                                    {"FI_PROVIDER", "tcp"},
                                    {"OMPI_MCA_opal_common_ucx_tls", "any"},
                                    {"OMPI_MCA_opal_common_ucx_devices", "any"}}) {
    const auto said = users.find(name);
    if (said == users.end()) {
      setenv(name, value, 1);
    } else if (const std::string both = left_out_by_both(said->second.value, value); !both.empty()) {
      setenv(name, both.c_str(), 1);
    }
  }
}

Result<void> check_settings_for_adapters(const std::string& host, const std::vector<std::string>& adapters,
                                         const std::vector<std::string>& program) {
  const bool launcher = is_mpi_launcher(program[0]);
  const std::string said =
      setting_for_adapters(mpi_settings_of(program), adapters, launcher && is_open_mpi(program[0]));
  if (said.empty()) return {};
  const std::string what =
      fmt::format("has MPI use {} of {}, which no checkpoint can hold", fmt::join(adapters, ", "), host);
  constexpr const char* kInstead = "leave it out: MPI is told to use TCP";
  // The program that srun starts may be no MPI program, or its MPI may not read this setting.
  if (launcher) return failure(ExitCode::kUnsupported, said, what, kInstead);
  fmt::print(stderr, "ckpt: {} {} ({})\n", printable(said), printable(what), kInstead);
  return {};
}

std::string words_on_adapters(const std::string& host, const std::vector<std::string>& adapters) {
  return fmt::format(
      "{} has {}, which no checkpoint can hold: MPI is told to use TCP; what you have set of it stays "
      "(OMPI_MCA_pml, OMPI_MCA_btl, UCX_TLS, FI_PROVIDER)",
      host, fmt::join(adapters, ", "));
}

}  // namespace ckpt::cli
