// Can one host's part of a checkpoint come back? What its images say, before the checkpoint counts.
//
// Owner:     cli/hosts. Callers: the agent, when its part is durable.
#pragma once

#include <string>

namespace ckpt::cli {

// The first reason that an image has against a restart, with its process; empty: none.
std::string what_forbids_part(const std::string& part);

}  // namespace ckpt::cli
