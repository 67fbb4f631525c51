// Stages and failures of a restart in words.
//
// Owner: restart. Callers: supervise.cc, main.cc, and restart/job for a job; one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/protocol/restart_protocol.h"
#include "base/result.h"

namespace ckpt {

const char* stage_name(RestartStage stage);

// The line for a failed stage: what failed, on what, and what to do.
Error stage_error(const RestartStatus& status, const std::function<std::string(uint32_t)>& mapping_name);

// One line for each RestorerNote bit, and each LibraryNote bit.
std::vector<std::string> restorer_note_lines(uint32_t notes);
std::vector<std::string> library_note_lines(uint32_t notes);

}  // namespace ckpt
