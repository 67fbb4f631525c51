// A program's answer as JSON: numbers as numbers, notes as a list.
//
// Owner: cli. Ordinary code, one thread.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/ask/asker.h"

namespace ckpt::cli {

nlohmann::ordered_json answer_json(const Target& target, const Answer& answer);

}  // namespace ckpt::cli
