#include "cli/hosts/agent/part_check.h"

#include <fmt/core.h>

#include "cli/hosts/job/hosts_manifest.h"
#include "cli/image/job_images.h"
#include "cli/image/restartable.h"
#include "cli/keeper/host_keeper.h"
#include "image/read/image_reader.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

Json report_of_step(cluster::Step step, uint64_t id, const Answer& lines, const std::string& images) {
  Json j{{"say", "reached"}, {"id", id}, {"step", static_cast<int>(step)}};
  for (const auto& [key, value] : lines) {
    if (key == "bookmark") j["bookmarks"].push_back(value);
    if (key != "part") continue;
    j["part"] = images + "/" + value;
    const ReachedPart part = reach_part(images + "/" + value);
    j["checksum"] = checksum_of_file(part.path + "/" + job::kManifestName);
    if (const std::string why = what_forbids_part(part.path); !why.empty()) j["no_restart"] = why;
  }
  return j;
}

std::string what_forbids_part(const std::string& part) {
  const JobEntry entry = examine_job(part);
  for (const ManifestMember& m : entry.manifest.members) {
    if (m.image.empty()) continue;
    auto image = ImageReader::open(part + "/" + m.image);
    // Slurm's, not ours that was found as srun and has not given itself its name yet. What it has started is
    // below slurmstepd, on any host: in no part, and missed by nobody but the program.
    if (m.name == "srun" && !(image.ok() && image->meta().mm.exe_path.ends_with("/ckpt-srun")))
      return fmt::format(
          "process {} (srun): what it has started is outside of the job; call it as srun, without a path",
          m.pid);
    if (!image.ok()) continue;  // encrypted: a restart will say it
    const auto why = what_forbids_restart(image->meta());
    if (!why.empty()) return fmt::format("process {} ({}): {}", m.pid, m.name, why[0]);
  }
  return {};
}

}  // namespace ckpt::cli
