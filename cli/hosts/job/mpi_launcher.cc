#include "cli/hosts/job/mpi_launcher.h"

#include <string_view>

#include "cli/starting/program.h"

namespace ckpt::cli {

bool is_mpi_launcher(const std::string& program) {
  const std::string_view name = std::string_view(program).substr(program.rfind('/') + 1);
  for (const std::string_view known : {"mpirun", "mpiexec", "orterun"}) {
    if (name.starts_with(known) && (name.size() == known.size() || name[known.size()] == '.')) return true;
  }
  return false;
}

Result<void> check_programs_of_launcher(const std::vector<std::string>& words) {
  bool behind_option = false, found = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ":") {
      found = behind_option = false;
      continue;
    }
    if (found) continue;
    if (word.starts_with("-")) {
      behind_option = true;
      continue;
    }
    // A path behind an option is its value as often as not (-hostfile, -x); a name there always may be.
    if (auto path = find_program(word); path.ok() && !behind_option) {
      // What is not on this host may be on the others.
      const Result<void> fits = check_program(*path);
      if (!fits.ok() && fits.error().code != ExitCode::kNotFound) return fits;
      found = true;
    }
    behind_option = false;
  }
  return {};
}

}  // namespace ckpt::cli
