#include "cli/ask/answer_json.h"

#include <charconv>

namespace ckpt::cli {

namespace {

// Keys whose values are text even when they look like numbers.
bool is_text(const std::string& key) {
  return key == "image" || key == "last_image" || key == "directory" || key == "last_error" ||
         key == "version" || key == "job" || key == "job_id" || key == "job_directory" || key == "to" ||
         key == "key_file";
}

// "VARIABLE TEXT"; the text may be empty.
std::pair<std::string, std::string> variable_and_text(const std::string& value) {
  const size_t space = value.find(' ');
  return {value.substr(0, space), space == std::string::npos ? "" : value.substr(space + 1)};
}

}  // namespace

std::vector<std::pair<std::string, SettingAnswer>> settings_of(const Answer& answer) {
  std::vector<std::pair<std::string, SettingAnswer>> all;
  for (const auto& [key, value] : answer) {
    const auto [variable, text] = variable_and_text(value);
    if (key == "setting") all.push_back({variable, {text, ""}});
    if (key == "in_force" && !all.empty() && all.back().first == variable) all.back().second.in_force = text;
  }
  return all;
}

nlohmann::ordered_json answer_json(const Target& target, const Answer& answer) {
  nlohmann::ordered_json json;
  json["pid"] = target.pid;
  json["program"] = target.name;
  for (const auto& [key, value] : answer) {
    if (key == "setting" || key == "in_force") continue;
    if (key == "pid") continue;  // the program's own number, which a namespace may hide from us
    if (key == "note" || key == "no_restart") {
      json[key == "note" ? "notes" : "why_not_restartable"].push_back(value);
      continue;
    }
    if (key == "restartable") {
      json[key] = value == "yes";
      continue;
    }
    int64_t number = 0;
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (!is_text(key) && error == std::errc() && end == value.data() + value.size()) {
      json[key] = number;
    } else {
      json[key] = value;
    }
  }
  for (const auto& [variable, value] : settings_of(answer)) {
    json["settings"][variable] = {{"set", value.set},
                                  {"in_force", value.in_force.empty() ? value.set : value.in_force}};
  }
  return json;
}

}  // namespace ckpt::cli
