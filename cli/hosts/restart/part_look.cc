#include "cli/hosts/restart/part_look.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli/hosts/job/hosts_run.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

std::vector<std::string> words_of_look(const std::string& launch, const std::string& host) {
  std::vector<std::string> words = launch_words(launch, host);
  words.insert(words.end(), {command_path("ckpt"), "check-part"});
  return words;
}

Result<ScopedFd> task_of_look(const std::string& part, const std::vector<std::string>& restart_words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, part, "no pipe for the look at it", "raise ulimit -n");
  ScopedFd in(ends[0]);
  const ScopedFd out(ends[1]);
  // Much less than a pipe takes: nobody reads it yet.
  Json task{{"part", json_of_bytes(part)}, {"words", Json::array()}};
  for (const std::string& word : restart_words) task["words"].push_back(json_of_bytes(word));
  const std::string line = task.dump() + "\n";
  if (write(out.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return failure(ExitCode::kSystem, part, "a pipe takes nothing", "report it");
  return in;
}

ExitCode run_look() {
  Json task;
  if (isatty(STDIN_FILENO) != 0 || !read_line(STDIN_FILENO, task, 10'000) || !task.contains("part"))
    return report(
        failure(ExitCode::kUsage, "check-part", "is started by ckpt-restart --check --hosts", "use that"));
  std::vector<std::string> words{command_path("ckpt-restart"), "--check"};
  for (const Json& word : task.value("words", Json::array())) words.push_back(bytes_in(word));
  words.insert(words.end(), {"--", bytes_in(task["part"])});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return report(failure(ExitCode::kNotFound, words[0], strerror(errno), "install it beside ckpt"));
}

}  // namespace ckpt::cli
