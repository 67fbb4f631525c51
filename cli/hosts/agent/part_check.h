// What an agent says of its part of a checkpoint, before the checkpoint counts: also what of it comes back
// changed, and what forbids that it comes back, by what its images say.
//
// Owner:     cli/hosts. Callers: the agent, when its part is durable.
#pragma once

#include <string>

#include "cli/ask/asker.h"
#include "cli/image/restartable.h"
#include "cli/text/json_lines.h"
#include "cluster/protocol/steps.h"

namespace ckpt::cli {

// What an agent reports of a step. lines: as its host's coordinator has said them. images: where parts go.
Json report_of_step(cluster::Step step, uint64_t id, const Answer& lines, const std::string& images);

// What the images of a part say, each line with its process.
ImageNotes said_by_part(const std::string& part);

}  // namespace ckpt::cli
