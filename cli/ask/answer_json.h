// A program's answer taken apart, and as JSON: numbers as numbers, notes as a list, settings by their
// variables.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt now`, `stat`, `back`.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/ask/asker.h"

namespace ckpt::cli {

// What `ckpt stat` was told of a setting.
struct SettingAnswer {
  std::string set, in_force;  // in_force: empty where it is as set
};
// By their variables, in the order of the answer.
std::vector<std::pair<std::string, SettingAnswer>> settings_of(const Answer& answer);

nlohmann::ordered_json answer_json(const Target& target, const Answer& answer);

}  // namespace ckpt::cli
