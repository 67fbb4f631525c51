#include "cli/image/restartable.h"

#include <nlohmann/json.hpp>

#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr const char* kCommand = "ckpt-restart";

}  // namespace

std::vector<std::string> what_forbids_restart(const ImageMeta& meta) {
  std::vector<std::string> reasons;
  for (const ParsedNote& n : meta.notes) {
    if (n.severity == 2) reasons.emplace_back(n.text);
  }
  return reasons;
}

std::optional<Error> why_not_restartable_here(const std::string& image, const std::string& key_file) {
  std::vector<std::string> words{command_path(kCommand), "--check", "--json"};
  if (!key_file.empty()) words.push_back("--key-file=" + key_file);
  words.push_back("--");
  words.push_back(image);
  auto said = run_command(words);
  if (!said.ok()) return said.error();
  const auto verdict = nlohmann::json::parse(said->text, nullptr, false);
  if (verdict.is_object() && verdict.value("ok", false)) return std::nullopt;
  if (verdict.is_object() && verdict.contains("error") && verdict["error"].is_string()) {
    return make_error(
        static_cast<ExitCode>(verdict.value("exit_code", static_cast<int>(ExitCode::kInternal))), 0, "{}",
        verdict["error"].get<std::string>());
  }
  return failure(ExitCode::kInternal, kCommand, fmt::format("ended with status {}", said->status),
                 "report this");
}

}  // namespace ckpt::cli
