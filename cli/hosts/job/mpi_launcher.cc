#include "cli/hosts/job/mpi_launcher.h"

#include <algorithm>
#include <string_view>

#include "cli/starting/program.h"

namespace ckpt::cli {

namespace {

// How many words follow an option, where Open MPI and MPICH agree or only one of them has it. -1: not known.
int values_of(const std::string& option) {
  static constexpr std::string_view kNone[] = {
      "oversubscribe", "allow-run-as-root", "report-bindings", "display-map", "display-allocation",
      "tag-output",    "nolocal",           "genvall",         "envall",      "genvnone",
      "envnone"};
  static constexpr std::string_view kOne[] = {
      "n",        "np",          "N",    "ppn",      "H",       "host",     "hosts",
      "hostfile", "machinefile", "f",    "npernode", "map-by",  "bind-to",  "x",
      "wdir",     "wd",          "path", "genvlist", "envlist", "launcher", "rank-by"};
  static constexpr std::string_view kTwo[] = {"mca", "gmca", "genv", "env"};
  const std::string_view name = std::string_view(option).substr(option.starts_with("--") ? 2 : 1);
  if (std::ranges::find(kNone, name) != std::end(kNone)) return 0;
  if (std::ranges::find(kOne, name) != std::end(kOne)) return 1;
  if (std::ranges::find(kTwo, name) != std::end(kTwo)) return 2;
  return -1;
}

}  // namespace

bool is_mpi_launcher(const std::string& program) {
  const std::string_view name = std::string_view(program).substr(program.rfind('/') + 1);
  for (const std::string_view known : {"mpirun", "mpiexec", "orterun"}) {
    if (name.starts_with(known) && (name.size() == known.size() || name[known.size()] == '.')) return true;
  }
  return false;
}

Result<void> check_programs_of_launcher(const std::vector<std::string>& words) {
  bool judged = false;  // the program of this part is found, or cannot be told
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ":") {
      judged = false;
    } else if (judged) {
      continue;
    } else if (word.starts_with("-")) {
      const int values = values_of(word);
      judged = values < 0;
      i += static_cast<size_t>(std::max(values, 0));
    } else {
      judged = true;
      auto path = find_program(word);
      if (!path.ok()) continue;
      // What is not on this host may be on the others.
      const Result<void> fits = check_program(*path);
      if (!fits.ok() && fits.error().code != ExitCode::kNotFound) return fits;
    }
  }
  return {};
}

}  // namespace ckpt::cli
