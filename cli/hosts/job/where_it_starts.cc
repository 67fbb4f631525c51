#include "cli/hosts/job/where_it_starts.h"

#include "cli/hosts/job/mpi_launcher.h"
#include "cli/hosts/job/slurm.h"
#include "cli/starting/program.h"
#include "cli/starting/run_command.h"

namespace ckpt::cli {

namespace {

// srun, in an allocation: its nodes are the hosts, and ckpt-srun takes its place.
Result<void> use_srun(std::string& hosts, std::vector<std::string>& program) {
  auto step = read_srun(program);
  if (!step.ok()) return step.error();
  for (const auto& words : step->programs) {
    auto path = find_program(words[0]);
    if (!path.ok()) continue;
    // A program that is not on this host may be on the others.
    const auto fits = check_program(*path);
    if (!fits.ok() && fits.error().code != ExitCode::kNotFound) return fits.error();
  }
  if (hosts.empty()) hosts = kAllocation;
  program[0] = command_path("ckpt-srun");
  return {};
}

}  // namespace

Result<void> settle_hosts(std::string& hosts, std::string& launch, std::vector<std::string>& program) {
  const bool alone = hosts == kNoHosts;
  if (!program.empty() && is_srun(program[0])) {
    CKPT_TRY(use_srun(hosts, program));
  } else if (!program.empty() && is_mpi_launcher(program[0])) {
    CKPT_TRY(check_programs_of_launcher(program));
    // The launcher would start ranks on the other nodes too.
    if (hosts.empty() && may_use_allocation() && allocation_is_elsewhere()) hosts = kAllocation;
  }
  if (alone) {
    hosts.clear();
    return {};
  }
  return name_hosts(hosts, launch);
}

}  // namespace ckpt::cli
