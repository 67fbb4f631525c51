// What the processes of a job have to do to pipes, connections, counters and groups that they share. Each is
// put back once, by one of the processes that have it.
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc, when all stand and each was compared by
// itself.
#pragma once

#include <string>
#include <vector>

#include "cli/back/descriptors/descriptor_difference.h"
#include "cli/back/descriptors/shared_parts.h"
#include "cli/back/job/job_processes.h"
#include "image/read/image_meta.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

struct PlannedMember {
  const ManifestMember* listed;
  JobProcess process;  // as it is now
  const ImageMeta *then, *now;
  DescriptorDifference* difference;  // plan_channels() adds orders to it
  const SharedParts* shared;
  int pidfd;
};

// An error names what cannot go back; nothing is changed then.
Result<void> plan_channels(const Manifest& manifest, std::vector<PlannedMember>& members);

}  // namespace ckpt::cli
