#include "cluster/srun/node/task_environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "cluster/srun/asked/hostlist.h"
#include "cluster/srun/node/inherited.h"

namespace ckpt::cluster::srun {

namespace {

using Values = std::map<std::string, std::string>;

// NAME,NAME=value,...; ALL stands for the others, and with NONE there is nothing else.
void take_exported(const std::string& exported, char** environment, Values& values) {
  std::vector<std::string> words(1);
  for (const char c : exported) {
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  }
  if (std::find(words.begin(), words.end(), "NONE") != words.end()) words.clear();
  const bool all = std::find(words.begin(), words.end(), "ALL") != words.end();
  for (char** e = environment; *e != nullptr; ++e) {
    const std::string pair = *e;
    const size_t equals = pair.find('=');
    if (equals == pair.npos) continue;
    const std::string name = pair.substr(0, equals);
    // Slurm's own go to the tasks whatever is exported.
    if (all || name.starts_with("SLURM_") || std::find(words.begin(), words.end(), name) != words.end())
      values[name] = pair.substr(equals + 1);
  }
  for (const std::string& word : words) {
    if (const size_t equals = word.find('='); equals != word.npos && equals != 0)
      values[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

const char* name_of(Distribution d) {
  return d == Distribution::kBlock ? "block" : d == Distribution::kCyclic ? "cyclic" : "plane";
}

bool is_of_host(std::string_view variable) { return variable.starts_with("CKPT_"); }

// What a PMIx server tells its ranks. The rest of PMIX_* is the user's: where PMIx is installed, what it is
// to say.
bool is_of_pmix_server(std::string_view variable) {
  constexpr std::string_view kOthers[] = {
      "PMIX_NAMESPACE", "PMIX_RANK",     "PMIX_SECURITY_MODE", "PMIX_GDS_MODULE", "PMIX_BFROP_BUFFER_TYPE",
      "PMIX_VERSION",   "PMIX_HOSTNAME", "PMIX_SYSTEM_TMPDIR", "PMIX_PTL_MODULE"};
  return variable.starts_with("PMIX_SERVER_") || variable.starts_with("PMIX_DSTORE_") ||
         std::find(std::begin(kOthers), std::end(kOthers), variable) != std::end(kOthers);
}

std::vector<std::string> preloaded(std::string_view list) {
  std::vector<std::string> all;
  while (!list.empty()) {
    const size_t end = list.find_first_of(" :");
    if (end != 0) all.emplace_back(list.substr(0, end));
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
  }
  return all;
}

// What the user wants preloaded, and then what is on this host: ours, which may lie elsewhere on the
// launcher's.
std::string merge_preload(std::string_view of_user, std::string_view of_host) {
  const std::vector<std::string> here = preloaded(of_host);
  const auto name = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
  std::string list;
  for (const std::string& path : preloaded(of_user)) {
    const bool ours =
        name(path).starts_with("libckpt_") &&
        std::any_of(here.begin(), here.end(), [&](const std::string& h) { return name(h) == name(path); });
    if (ours || std::find(here.begin(), here.end(), path) != here.end()) continue;
    list += (list.empty() ? "" : ":") + path;
  }
  for (const std::string& path : here) list += (list.empty() ? "" : ":") + path;
  return list;
}

}  // namespace

std::vector<std::string> environment_here(const std::vector<std::string>& of_step,
                                          const std::map<std::string, std::string>& of_task, char** host) {
  // In one map: a program that finds a name twice takes the first, and bash the last.
  Values v;
  const auto put = [&v](std::string_view pair) {
    if (const size_t equals = pair.find('='); equals != pair.npos)
      v[std::string(pair.substr(0, equals))] = pair.substr(equals + 1);
  };
  for (const std::string& pair : of_step) put(pair);
  for (const auto& [name, value] : of_task) v[name] = value;
  for (char** e = host; *e != nullptr; ++e) {
    const std::string_view pair = *e, name = pair.substr(0, pair.find('='));
    if (is_of_host(name)) put(pair);
    if (name == "LD_PRELOAD" && name.size() < pair.size())
      v["LD_PRELOAD"] = merge_preload(v["LD_PRELOAD"], pair.substr(name.size() + 1));
  }
  for (const char* ours : {"SLURM_TASK_PID", "PMI_FD"}) v.erase(ours);  // the child knows them
  std::vector<std::string> all;
  for (const auto& [name, value] : v) all.push_back(name + "=" + value);
  return all;
}

std::vector<std::string> environment_of_step(const Step& step, char** environment) {
  Values v;
  take_exported(step.options.exported, environment, v);
  std::erase_if(v, [](const auto& pair) {
    return is_of_host(pair.first) || pair.first.starts_with("PMI_") || pair.first.starts_with("HYDRA_") ||
           is_of_pmix_server(pair.first);
  });
  const Layout& l = step.layout;
  const std::string tasks = std::to_string(l.count()), nodes = std::to_string(l.nodes.size()),
                    list = compress_hostlist(l.nodes), counts = compress_counts(l.counts()),
                    number = std::to_string(step.number);
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) v[name] = tasks;
  for (const char* name : {"SLURM_NNODES", "SLURM_STEP_NUM_NODES"}) v[name] = nodes;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) v[name] = number;
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID"}) v[name] = step.allocation.job_id;
  for (const char* name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) v[name] = counts;
  v["SLURM_STEP_NODELIST"] = list;
  v["SLURM_NODELIST"] = list;
  v["SLURM_DISTRIBUTION"] = name_of(step.options.distribution);
  if (step.options.distribution == Distribution::kPlane)
    v["SLURM_DIST_PLANESIZE"] = std::to_string(step.options.plane);
  if (step.options.cpus_per_task != 0) v["SLURM_CPUS_PER_TASK"] = std::to_string(step.options.cpus_per_task);
  if (step.options.tasks_per_node != 0)
    v["SLURM_NTASKS_PER_NODE"] = std::to_string(step.options.tasks_per_node);
  if (!step.options.job_name.empty()) v["SLURM_JOB_NAME"] = step.options.job_name;
  if (const Binding& b = step.options.binding; b.kind != Binding::Kind::kNone) {
    const size_t colon = std::min(b.text.size(), b.text.find(':'));
    v["SLURM_CPU_BIND"] = "quiet," + b.text;
    v["SLURM_CPU_BIND_VERBOSE"] = "quiet";
    v["SLURM_CPU_BIND_TYPE"] = b.text.substr(0, std::min(b.text.size(), colon + 1));
    v["SLURM_CPU_BIND_LIST"] = b.text.substr(std::min(b.text.size(), colon + 1));
  }
  v["SLURM_MPI_TYPE"] = step.options.mpi == Mpi::kPmi2   ? "pmi2"
                        : step.options.mpi == Mpi::kPmix ? "pmix"
                                                         : "none";
  v["SLURM_SUBMIT_DIR"] = v.contains("SLURM_SUBMIT_DIR") ? v["SLURM_SUBMIT_DIR"] : step.directory;
  v["SLURM_UMASK"] = fmt::format("{:04o}", static_cast<unsigned>(read_inherited().umask));
  if (serves_pmi(step.options.mpi)) {
    v["PMI_JOBID"] = step.id();
    v["PMI_SIZE"] = tasks;
  }
  std::vector<std::string> all;
  for (const auto& [name, value] : v) all.push_back(name + "=" + value);
  return all;
}

std::map<std::string, std::string> environment_of_task(const Step& step, int node, int place, int task) {
  const auto at = static_cast<size_t>(node);
  std::string all;
  for (const int t : step.layout.tasks[at]) all += (all.empty() ? "" : ",") + std::to_string(t);
  Values v{{"SLURM_PROCID", std::to_string(task)},
           {"SLURM_LOCALID", std::to_string(place)},
           {"SLURM_NODEID", std::to_string(node)},
           {"SLURM_GTIDS", all},
           {"SLURMD_NODENAME", step.layout.nodes[at]}};
  if (!step.layout.cpus.empty()) v["SLURM_CPUS_ON_NODE"] = std::to_string(step.layout.cpus[at]);
  if (serves_pmi(step.options.mpi)) v["PMI_RANK"] = std::to_string(task);
  return v;
}

}  // namespace ckpt::cluster::srun
