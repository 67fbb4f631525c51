#include "cli/hosts/agent/part_check.h"

#include <fmt/core.h>

#include "cli/image/job_images.h"
#include "cli/image/restartable.h"
#include "image/read/image_reader.h"

namespace ckpt::cli {

std::string what_forbids_part(const std::string& part) {
  const JobEntry entry = examine_job(part);
  for (const ManifestMember& m : entry.manifest.members) {
    if (m.image.empty()) continue;
    auto image = ImageReader::open(part + "/" + m.image);
    if (!image.ok()) continue;  // encrypted: a restart will say it
    const auto why = what_forbids_restart(image->meta());
    if (!why.empty()) return fmt::format("process {} ({}): {}", m.pid, m.name, why[0]);
  }
  return {};
}

}  // namespace ckpt::cli
