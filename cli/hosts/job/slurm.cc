#include "cli/hosts/job/slurm.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// The MPI that the site's srun serves where nobody says --mpi; "" where it cannot be asked.
std::string site_mpi() {
  const std::unique_ptr<FILE, int (*)(FILE*)> out(
      popen("timeout 20 scontrol show config 2>/dev/null </dev/null", "re"), pclose);
  char line[4096], value[256];
  std::string found;
  while (out != nullptr && fgets(line, sizeof(line), out.get()) != nullptr) {
    if (sscanf(line, "MpiDefault = %255s", value) == 1) found = value;
  }
  return found;
}

const char* variable_here(const char* name) { return getenv(name); }

}  // namespace

bool may_use_allocation() {
  if (getenv("SLURM_JOB_ID") == nullptr || getenv("CKPT_JOB") != nullptr) return false;
  const char* step = getenv("SLURM_STEP_ID");
  // Numbers from here on are not of srun's steps: of the batch script's, of salloc's interactive one.
  constexpr unsigned long kFirstOfSlurm = 0xfffffff0;
  return step == nullptr || strtoul(step, nullptr, 10) >= kFirstOfSlurm;
}

bool allocation_is_elsewhere() {
  auto allocation = cluster::srun::read_allocation(variable_here);
  if (!allocation.ok()) return false;
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const std::string own = name;
  const char* slurm = getenv("SLURMD_NODENAME");
  return std::ranges::any_of(allocation->nodes, [&](const std::string& node) {
    return node != own && node != own.substr(0, own.find('.')) && (slurm == nullptr || node != slurm);
  });
}

Result<void> name_hosts(std::string& hosts, std::string& launch) {
  if (hosts != kAllocation) return {};
  auto allocation = cluster::srun::read_allocation(variable_here);
  if (!allocation.ok())
    return make_error(allocation.error().code, 0, "--hosts {}: {}", kAllocation,
                      allocation.error().message());
  hosts.clear();
  for (const std::string& node : allocation->nodes) hosts += (hosts.empty() ? "" : ",") + node;
  if (launch == kDefaultLaunch) launch = kSlurmLaunch;
  return {};
}

bool is_srun(const std::string& program) { return program.substr(program.rfind('/') + 1) == "srun"; }

Result<cluster::srun::Step> read_srun(const std::vector<std::string>& program) {
  std::string of_site;
  const auto variable = [&of_site](const char* name) -> const char* {
    const char* value = getenv(name);
    if (value != nullptr || strcmp(name, "SLURM_MPI_TYPE") != 0 || of_site.empty()) return value;
    return of_site.c_str();
  };
  const std::vector<std::string> words(program.begin() + 1, program.end());
  auto step = cluster::srun::read_step(words, variable);
  // Where neither the line nor the environment names a kind of MPI, the site does. PMI-2 is there also
  // without being asked for.
  if (step.ok() && getenv("SLURM_MPI_TYPE") == nullptr) {
    of_site = site_mpi();
    if (of_site == "none") of_site.clear();
    if (!of_site.empty()) step = cluster::srun::read_step(words, variable);
  }
  if (!step.ok()) return make_error(step.error().code, 0, "srun: {}", step.error().message());
  return step;
}

std::map<std::string, std::string> variables_of_allocation() {
  std::map<std::string, std::string> all;
  if (getenv("SLURM_JOB_ID") == nullptr) return all;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string pair = *e;
    const size_t equals = pair.find('=');
    if (equals != pair.npos && (pair.starts_with("SLURM") || pair.starts_with("SRUN_")))
      all[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  // For srun in a script of the job, which asks nobody.
  if (!all.contains("SLURM_MPI_TYPE")) {
    if (const std::string of_site = site_mpi(); !of_site.empty() && of_site != "none")
      all["SLURM_MPI_TYPE"] = of_site;
  }
  return all;
}

void put_stand_ins_ahead() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  const std::string self(path, n > 0 ? static_cast<size_t>(n) : 0);
  const std::string root = self.substr(0, self.rfind("/bin/"));
  const char* before = getenv("PATH");
  const std::string rest = before != nullptr ? before : "/usr/local/bin:/usr/bin:/bin";
  for (const char* library : {"/lib", "/" CKPT_LIBDIR}) {
    const std::string directory = root + library + "/ckpt_rt/stand-ins";
    if (access((directory + "/srun").c_str(), X_OK) != 0) continue;
    if (!rest.starts_with(directory + ":")) setenv("PATH", (directory + ":" + rest).c_str(), 1);
    return;
  }
}

}  // namespace ckpt::cli
