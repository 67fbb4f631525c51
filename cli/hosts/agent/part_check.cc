#include "cli/hosts/agent/part_check.h"

#include <fmt/core.h>

#include "cli/hosts/job/hosts_manifest.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/restartable.h"
#include "cli/keeper/host_keeper.h"
#include "cli/text/text_out.h"
#include "image/read/image_reader.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

// A name in it may be no text (UTF-8), which no message may have.
std::string as_text(std::string line) {
  if (json_of_bytes(line).is_string()) return line;
  for (char& c : line) c = (c & 0x80) != 0 ? '?' : c;
  return line;
}

// So many are enough, for a message too.
Json lines_of(const std::vector<std::string>& lines) {
  constexpr size_t kMost = 32;
  Json all = Json::array();
  for (size_t i = 0; i < lines.size() && i < kMost; ++i) all.push_back(as_text(printable(lines[i])));
  if (lines.size() > kMost) all.push_back(fmt::format("and {} more", lines.size() - kMost));
  return all;
}

}  // namespace

Json report_of_step(cluster::Step step, uint64_t id, const Answer& lines, const std::string& images) {
  Json j{{"say", "reached"}, {"id", id}, {"step", static_cast<int>(step)}};
  for (const auto& [key, value] : lines) {
    if (key == "bookmark") j["bookmarks"].push_back(value);
    if (key != "part") continue;
    j["part"] = images + "/" + value;
    const ReachedPart part = reach_part(images + "/" + value);
    j["checksum"] = checksum_of_file(part.path + "/" + job::kManifestName);
    const ImageNotes said = said_by_part(part.path);
    j["no_restart"] = lines_of(said.no_restart);
    j["notes"] = lines_of(said.notes);
  }
  return j;
}

ImageNotes said_by_part(const std::string& part) {
  ImageNotes said = notes_of_job(part);
  const JobEntry entry = examine_job(part);
  for (const ManifestMember& m : entry.manifest.members) {
    if (m.image.empty() || m.name != "srun") continue;
    auto image = ImageReader::open(part + "/" + m.image);
    // Slurm's, not ours that was found as srun and has not given itself its name yet. The tasks that it has
    // started are below slurmstepd, on any host: in no part, and missed by nobody but the program.
    if (!(image.ok() && image->meta().mm.exe_path.ends_with("/ckpt-srun")))
      said.no_restart.push_back(fmt::format(
          "process {} (srun): what it has started is outside of the job; call it as srun, without a path",
          m.pid));
  }
  return said;
}

}  // namespace ckpt::cli
