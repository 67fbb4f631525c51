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

}  // namespace

nlohmann::ordered_json answer_json(const Target& target, const Answer& answer) {
  nlohmann::ordered_json json;
  json["pid"] = target.pid;
  json["program"] = target.name;
  for (const auto& [key, value] : answer) {
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
  return json;
}

}  // namespace ckpt::cli
