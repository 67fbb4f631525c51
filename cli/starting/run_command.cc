#include "cli/starting/run_command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/raii_fd.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

std::string command_path(const char* command) {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (n <= 0) return command;
  const std::string path(self, static_cast<size_t>(n));
  return path.substr(0, path.rfind('/') + 1) + command;
}

Result<Said> run_command(const std::vector<std::string>& words, bool catch_errors, int in,
                         const CommandEnd& end) {
  int out[2], errors[2];
  if (pipe2(out, O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, words[0], strerror(errno), "end other programs");
  ScopedFd from(out[0]), to(out[1]);
  if (pipe2(errors, O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, words[0], strerror(errno), "end other programs");
  ScopedFd errors_from(errors[0]), errors_to(errors[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (in >= 0)
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  if (catch_errors) posix_spawn_file_actions_adddup2(&actions, errors_to.get(), STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (end.mask != nullptr) {
    posix_spawnattr_setsigmask(&attributes, end.mask);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  }
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return failure(ExitCode::kNotFound, words[0], strerror(error), "install all commands together");
  to.reset();
  errors_to.reset();
  Said said;
  pollfd ends[3] = {{from.get(), POLLIN, 0}, {errors_from.get(), POLLIN, 0}, {end.asked, POLLIN, 0}};
  std::string* const texts[2] = {&said.text, &said.errors};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends, 3, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (ends[2].revents != 0) {
      kill(child, SIGTERM);
      ends[2] = {-1, 0, 0};
    }
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(ends[i].fd, buffer, sizeof(buffer));
      if (n > 0) texts[i]->append(buffer, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR)) ends[i].fd = -1;
    }
  }
  while (waitpid(child, &said.status, 0) < 0 && errno == EINTR) {
  }
  return said;
}

void become(const std::vector<std::string>& words, const char* speaker) {
  std::vector<char*> argv;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  fmt::print(stderr, "{}{}: cannot be started ({})\n", speaker, words[0], strerror(errno));
  _exit(127);
}

}  // namespace ckpt::cli
