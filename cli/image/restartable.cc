#include "cli/image/restartable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/raii_fd.h"
#include "cli/text/failure.h"

extern char** environ;

namespace ckpt::cli {

namespace {

constexpr const char* kCommand = "ckpt-restart";

// It is installed beside us.
std::string command_path() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (n <= 0) return kCommand;
  const std::string path(self, static_cast<size_t>(n));
  return path.substr(0, path.rfind('/') + 1) + kCommand;
}

struct Said {
  std::string text;
  int status = 0;
};

// Its standard output, and how it ended.
Result<Said> run(const std::vector<std::string>& words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, kCommand, strerror(errno), "end other programs");
  ScopedFd from(ends[0]), to(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return failure(ExitCode::kNotFound, words[0], strerror(error), "install all commands together");
  to.reset();
  Said said;
  char buffer[4096];
  for (ssize_t n; (n = read(from.get(), buffer, sizeof(buffer))) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) said.text.append(buffer, static_cast<size_t>(n));
  }
  while (waitpid(child, &said.status, 0) < 0 && errno == EINTR) {
  }
  return said;
}

}  // namespace

std::vector<std::string> what_forbids_restart(const ImageMeta& meta) {
  std::vector<std::string> reasons;
  for (const ParsedNote& n : meta.notes) {
    if (n.severity == 2) reasons.emplace_back(n.text);
  }
  return reasons;
}

std::optional<Error> why_not_restartable_here(const std::string& image, const std::string& key_file) {
  std::vector<std::string> words{command_path(), "--check", "--json"};
  if (!key_file.empty()) words.push_back("--key-file=" + key_file);
  words.push_back("--");
  words.push_back(image);
  auto said = run(words);
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
