#include "cli/image/restartable.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/image/jobs/job_images.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"
#include "image/read/image_reader.h"

namespace ckpt::cli {

namespace {

constexpr const char* kCommand = "ckpt-restart";

}  // namespace

std::vector<std::string> what_forbids_restart(const ImageMeta& meta) {
  std::vector<std::string> reasons;
  for (const ParsedNote& n : meta.notes) {
    if (n.severity == kNoRestart) reasons.emplace_back(n.text);
  }
  return reasons;
}

ImageNotes notes_of_image(const std::string& path) {
  ImageNotes said;
  auto image = ImageReader::open(path);
  if (!image.ok()) return said;  // of another mount namespace, encrypted, or pruned meanwhile
  for (const ParsedNote& n : image->meta().notes) {
    if (n.severity == kChanged) said.notes.emplace_back(n.text);
  }
  said.no_restart = what_forbids_restart(image->meta());
  return said;
}

ImageNotes notes_of_job(const std::string& path) {
  ImageNotes all;
  const JobEntry job = examine_job(path);
  for (const ManifestMember& m : job.manifest.members) {
    if (m.image.empty()) continue;
    const std::string whose = fmt::format("process {} ({}): ", m.pid, m.name);
    const ImageNotes said = notes_of_image(path + "/" + m.image);
    for (const std::string& note : said.notes) all.notes.push_back(whose + note);
    for (const std::string& why : said.no_restart) all.no_restart.push_back(whose + why);
    // A daemon's child that has given up root (restart/job/job_plan.cc refuses it without the option).
    struct stat file, directory;
    if (stat((path + "/" + m.image).c_str(), &file) == 0 && stat(path.c_str(), &directory) == 0 &&
        file.st_uid != directory.st_uid && file.st_uid != 0)
      all.notes.push_back(
          fmt::format("{}was saved by user {}, who decides what it runs: ckpt-restart asks for --trust",
                      whose, file.st_uid));
  }
  return all;
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
