#include "cluster/srun/asked/options.h"

#include <getopt.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

namespace ckpt::cluster::srun {

namespace {

// Options without a letter of their own.
enum : int {
  kMpi = 256,
  kTasksPerNode,
  kExport,
  kOpenMode,
  kMultiProg,
  kCpuBind,
  kNothing,  // says what an allocation that is there has, or how Slurm is to go about it
};

constexpr option kLong[] = {
    {"ntasks", required_argument, nullptr, 'n'},
    {"nodes", required_argument, nullptr, 'N'},
    {"ntasks-per-node", required_argument, nullptr, kTasksPerNode},
    {"tasks-per-node", required_argument, nullptr, kTasksPerNode},
    {"cpus-per-task", required_argument, nullptr, 'c'},
    {"nodelist", required_argument, nullptr, 'w'},
    {"exclude", required_argument, nullptr, 'x'},
    {"relative", required_argument, nullptr, 'r'},
    {"distribution", required_argument, nullptr, 'm'},
    {"mpi", required_argument, nullptr, kMpi},
    {"input", required_argument, nullptr, 'i'},
    {"output", required_argument, nullptr, 'o'},
    {"error", required_argument, nullptr, 'e'},
    {"open-mode", required_argument, nullptr, kOpenMode},
    {"label", no_argument, nullptr, 'l'},
    {"unbuffered", no_argument, nullptr, 'u'},
    {"chdir", required_argument, nullptr, 'D'},
    {"export", required_argument, nullptr, kExport},
    {"kill-on-bad-exit", optional_argument, nullptr, 'K'},
    {"wait", required_argument, nullptr, 'W'},
    {"time", required_argument, nullptr, 't'},
    {"job-name", required_argument, nullptr, 'J'},
    {"multi-prog", no_argument, nullptr, kMultiProg},
    {"quiet", no_argument, nullptr, 'Q'},
    {"verbose", no_argument, nullptr, 'v'},
    {"overcommit", no_argument, nullptr, 'O'},
    {"oversubscribe", no_argument, nullptr, 's'},
    {"disable-status", no_argument, nullptr, 'X'},
    {"no-kill", optional_argument, nullptr, 'k'},
    {"partition", required_argument, nullptr, 'p'},
    {"account", required_argument, nullptr, 'A'},
    {"exact", no_argument, nullptr, kNothing},
    {"overlap", no_argument, nullptr, kNothing},
    {"exclusive", optional_argument, nullptr, kNothing},
    {"whole", no_argument, nullptr, kNothing},
    {"cpu-bind", required_argument, nullptr, kCpuBind},
    {"cpu_bind", required_argument, nullptr, kCpuBind},
    {"mem-bind", required_argument, nullptr, kNothing},
    {"accel-bind", required_argument, nullptr, kNothing},
    {"hint", required_argument, nullptr, kNothing},
    {"threads-per-core", required_argument, nullptr, kNothing},
    {"ntasks-per-core", required_argument, nullptr, kNothing},
    {"ntasks-per-socket", required_argument, nullptr, kNothing},
    {"cores-per-socket", required_argument, nullptr, kNothing},
    {"sockets-per-node", required_argument, nullptr, kNothing},
    {"mincpus", required_argument, nullptr, kNothing},
    {"mem", required_argument, nullptr, kNothing},
    {"mem-per-cpu", required_argument, nullptr, kNothing},
    {"constraint", required_argument, nullptr, kNothing},
    {"qos", required_argument, nullptr, kNothing},
    {"comment", required_argument, nullptr, kNothing},
    {"immediate", optional_argument, nullptr, kNothing},
    {"propagate", optional_argument, nullptr, kNothing},
    {"slurmd-debug", required_argument, nullptr, kNothing},
    {nullptr, 0, nullptr, 0},
};
// "+": what stands behind the program's name is the program's. ":": a missing value is told from an unknown
// option.
constexpr const char* kShort = "+:n:N:c:w:x:r:m:i:o:e:luD:K::W:t:J:QvOsXk::p:A:";

template <typename... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kUnsupported, 0, format, std::forward<Args>(args)...);
}

bool read_count(std::string_view text, int& count, int least = 1) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() && count >= least && count <= 10'000'000;
}

// minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
bool read_time(std::string_view text, int& seconds) {
  int days = 0, parts[3] = {}, count = 0;
  const size_t dash = text.find('-');
  if (dash != text.npos) {
    if (!read_count(text.substr(0, dash), days, 0)) return false;
    text.remove_prefix(dash + 1);
  }
  while (true) {
    const size_t colon = text.find(':');
    if (count == 3 || !read_count(text.substr(0, colon), parts[count++], 0)) return false;
    if (colon == text.npos) break;
    text.remove_prefix(colon + 1);
  }
  // The first is hours behind days, and where there are three.
  int64_t all = 0;
  if (dash != text.npos || count == 3)
    all = (int64_t{days} * 24 + parts[0]) * 3600 + parts[1] * 60 + parts[2];
  else
    all = int64_t{parts[0]} * 60 + parts[1];
  seconds = static_cast<int>(std::min<int64_t>(all, 1'000'000'000));
  return true;
}

Result<void> take_distribution(std::string_view text, Options& o) {
  std::string_view nodes = text.substr(0, text.find_first_of(":,"));
  if (nodes == "*" || nodes == "block" || nodes.empty()) {
    o.distribution = Distribution::kBlock;
  } else if (nodes == "cyclic") {
    o.distribution = Distribution::kCyclic;
  } else if (nodes.starts_with("plane=") && read_count(nodes.substr(6), o.plane)) {
    o.distribution = Distribution::kPlane;
  } else {
    return refused("--distribution={}: is not known to ckpt; use block, cyclic or plane=N", text);
  }
  return {};
}

Result<void> take_mpi(std::string_view type, Options& o) {
  if (type == "none") {
    o.mpi = Mpi::kNone;
  } else if (type == "pmi2" || type.empty()) {
    o.mpi = Mpi::kPmi2;
  } else if (type == "pmix" || type.starts_with("pmix_v")) {
    o.mpi = Mpi::kPmix;
  } else {
    return refused(
        "--mpi={}: ckpt has no server of it for a job that is checkpointed; use --mpi=pmi2 (MPICH and its "
        "kin), --mpi=pmix (Open MPI), or mpirun in place of srun",
        type);
  }
  return {};
}

Result<void> take(int letter, const char* name, const char* value, Options& o) {
  const auto count = [&](int& to, int least = 1) -> Result<void> {
    if (read_count(value, to, least)) return {};
    return make_error(ExitCode::kUsage, 0, "{}: {}: is no number that fits", name, value);
  };
  switch (letter) {
    case 'n':
      return count(o.tasks);
    case 'N': {
      // "2-4": as many as there are, at most 4, and no fewer than 2.
      const std::string_view text = value;
      const size_t dash = text.find('-');
      int least = 0, most = 0;
      if (!read_count(text.substr(0, dash), least) ||
          !read_count(dash == text.npos ? text : text.substr(dash + 1), most) || most < least)
        return make_error(ExitCode::kUsage, 0, "{}: {}: is no number that fits", name, value);
      o.least_nodes = least;
      o.nodes = most;
      return {};
    }
    case kTasksPerNode:
      return count(o.tasks_per_node);
    case 'c':
      return count(o.cpus_per_task);
    case 'r':
      return count(o.relative, 0);
    case 'w':
      if (strchr(value, '/') != nullptr)
        return refused("{}: {}: a file of names is not read by ckpt; name the nodes", name, value);
      o.nodelist = value;
      return {};
    case 'x':
      o.exclude = value;
      return {};
    case 'm':
      return take_distribution(value, o);
    case kMpi:
      return take_mpi(value, o);
    case 'i':
      o.input = value;
      return {};
    case 'o':
      o.output = value;
      return {};
    case 'e':
      o.error = value;
      return {};
    case kOpenMode:
      if (*value != 'a' && *value != 't')
        return make_error(ExitCode::kUsage, 0, "{}: {}: append or truncate", name, value);
      o.append = *value == 'a';
      return {};
    case 'l':
      o.label = true;
      return {};
    case 'u':
      o.unbuffered = true;
      return {};
    case 'D':
      o.directory = value;
      return {};
    case kExport:
      o.exported = value;
      return {};
    case 'K':
      if (value == nullptr) {
        o.kill_on_bad_exit = 1;
        return {};
      }
      return count(o.kill_on_bad_exit, 0);
    case 'W':
      return count(o.wait_s, 0);
    case 't':
      if (!read_time(value, o.time_s))
        return make_error(ExitCode::kUsage, 0, "{}: {}: is no time as Slurm writes it", name, value);
      return {};
    case 'J':
      o.job_name = value;
      return {};
    case kMultiProg:
      o.multi_prog = true;
      return {};
    case kCpuBind: {
      auto binding = read_binding(value);
      if (!binding.ok()) return binding.error();
      o.binding = std::move(*binding);
      return {};
    }
    case 'Q':
      o.quiet = true;
      return {};
    default:
      return {};  // nothing to do for it
  }
}

// Variables that sbatch and salloc set, and variables that users set: the command line counts more.
// refused: what is wrong with them, by the option that they stand for.
void take_variables(const Variables& variables, Options& o, std::map<int, Error>& refused) {
  static constexpr struct {
    const char* name;
    int letter;
  } kVariables[] = {{"SLURM_NPROCS", 'n'},
                    {"SLURM_NTASKS", 'n'},
                    {"SLURM_NTASKS_PER_NODE", kTasksPerNode},
                    {"SRUN_CPUS_PER_TASK", 'c'},
                    {"SLURM_DISTRIBUTION", 'm'},
                    {"SLURM_MPI_TYPE", kMpi},
                    {"SLURM_STDINMODE", 'i'},
                    {"SLURM_STDOUTMODE", 'o'},
                    {"SLURM_STDERRMODE", 'e'},
                    {"SLURM_OPEN_MODE", kOpenMode},
                    {"SLURM_EXPORT_ENV", kExport},
                    {"SLURM_KILL_BAD_EXIT", 'K'},
                    {"SLURM_WAIT", 'W'},
                    {"SLURM_WORKING_DIR", 'D'}};
  for (const auto& v : kVariables) {
    const char* value = variables(v.name);
    if (value == nullptr || *value == '\0') continue;
    if (auto taken = take(v.letter, v.name, value, o); !taken.ok())
      refused.insert_or_assign(v.letter, taken.error());
    else
      refused.erase(v.letter);
  }
  const auto is_set = [&](const char* name) {
    const char* value = variables(name);
    return value != nullptr && strcmp(value, "0") != 0;
  };
  o.label = is_set("SLURM_LABELIO");
  o.unbuffered = is_set("SLURM_UNBUFFEREDIO");
}

}  // namespace

Result<Options> parse_options(const std::vector<std::string>& words, const Variables& variables) {
  Options o;
  // A variable of the site or of the script is wrong only where the line does not say another value.
  std::map<int, Error> wrong_variables;
  take_variables(variables, o, wrong_variables);
  std::vector<std::string> copies{"srun"};
  copies.insert(copies.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int count = static_cast<int>(copies.size());
  opterr = 0;
  optind = 0;  // begin anew
  bool tasks_said = false, per_node_said = false;
  for (int letter; (letter = getopt_long(count, argv.data(), kShort, kLong, nullptr)) != -1;) {
    const std::string word = argv[optind > 1 ? optind - 1 : 1];
    const std::string name = word.starts_with("--") ? word.substr(0, word.find('='))
                             : letter < 256         ? std::string("-") + static_cast<char>(letter)
                                                    : word;
    if (letter == ':') return make_error(ExitCode::kUsage, 0, "{}: its value is missing", word);
    if (letter == '?')
      return refused(
          "{}: ckpt, which takes the place of srun in this job, does not know this option; leave it out, "
          "or start the ranks with mpirun",
          optopt > 0 && optopt < 256 ? std::string("-") + static_cast<char>(optopt) : name);
    CKPT_TRY(take(letter, name.c_str(), optarg, o));
    wrong_variables.erase(letter);
    tasks_said = tasks_said || letter == 'n';
    per_node_said = per_node_said || letter == kTasksPerNode;
  }
  if (!wrong_variables.empty()) return wrong_variables.begin()->second;
  o.command.assign(words.begin() + (optind - 1), words.end());
  if (o.command.empty())
    return make_error(ExitCode::kUsage, 0, "no program given: srun [options] PROGRAM [arguments]");
  // So many on each node, however many tasks the allocation was asked for.
  if (!tasks_said && per_node_said) o.tasks = 0;
  return o;
}

}  // namespace ckpt::cluster::srun
