// What an agent says of its part of a checkpoint, before the checkpoint counts; and whether the part can come
// back, by what its images say.
//
// Owner:     cli/hosts. Callers: the agent, when its part is durable.
#pragma once

#include <string>

#include "cli/ask/asker.h"
#include "cli/text/json_lines.h"
#include "cluster/protocol/steps.h"

namespace ckpt::cli {

// What an agent reports of a step. lines: as its host's coordinator has said them. images: where parts go.
Json report_of_step(cluster::Step step, uint64_t id, const Answer& lines, const std::string& images);

// The first reason that an image has against a restart, with its process; empty: none.
std::string what_forbids_part(const std::string& part);

}  // namespace ckpt::cli
