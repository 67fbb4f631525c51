#include "cli/hosts/job/mpi_launcher.h"

#include <limits.h>
#include <stdlib.h>

#include <algorithm>
#include <string_view>

#include "cli/starting/program.h"

namespace ckpt::cli {

namespace {

// Without its dashes.
std::string_view name_of_option(std::string_view option) {
  return option.substr(option.starts_with("--") ? 2 : 1);
}

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
  static constexpr std::string_view kTwo[] = {"mca", "gmca", "omca", "prtemca", "pmixmca", "genv", "env"};
  const std::string_view name = name_of_option(option);
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

bool is_open_mpi(const std::string& launcher) {
  auto path = find_program(launcher);
  char real[PATH_MAX];
  const std::string_view all =
      path.ok() && realpath(path->c_str(), real) != nullptr ? real : launcher.c_str();
  const std::string_view name = all.substr(all.rfind('/') + 1);
  return name.starts_with("orterun") || name.starts_with("prterun") || name.ends_with("openmpi");
}

// Behind an option that is not known the next words may be its values, or the program and its arguments: an
// option of these names is taken there too.
std::vector<std::pair<std::string, std::string>> settings_on_line(const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> settings;
  bool unknown = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ":") continue;
    if (!word.starts_with("-")) {
      if (unknown) continue;
      while (i + 1 < words.size() && words[i + 1] != ":") ++i;  // the program's arguments
      continue;
    }
    const int values = values_of(word);
    unknown = unknown || values < 0;
    const std::string_view name = name_of_option(word);
    if (i + static_cast<size_t>(std::max(values, 0)) >= words.size()) break;
    if (name == "x") {
      const size_t equals = words[i + 1].find('=');
      if (equals != std::string::npos)
        settings.emplace_back(words[i + 1].substr(0, equals), words[i + 1].substr(equals + 1));
    } else if (name.ends_with("mca")) {
      settings.emplace_back("OMPI_MCA_" + words[i + 1], words[i + 2]);
    } else if (name == "genv" || name == "env") {
      settings.emplace_back(words[i + 1], words[i + 2]);
    }
    i += static_cast<size_t>(std::max(values, 0));
  }
  return settings;
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
      // A program that is not on this host may be on the others.
      const auto fits = check_program(*path);
      if (!fits.ok() && fits.error().code != ExitCode::kNotFound) return fits.error();
    }
  }
  return {};
}

}  // namespace ckpt::cli
