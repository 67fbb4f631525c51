#include "bench/latency/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

extern char** environ;

namespace latency {

namespace {

int64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

// Starts a program with its standard output in a pipe, whose reading end is returned.
pid_t spawn(const std::vector<std::string>& command, const std::vector<std::string>& extra_environment,
            int* output) {
  std::vector<char*> argv, envp;
  for (const auto& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::strncmp(*e, "CKPT_", 5) != 0 && std::strncmp(*e, "LD_PRELOAD=", 11) != 0) envp.push_back(*e);
  }
  for (const auto& e : extra_environment) envp.push_back(const_cast<char*>(e.c_str()));
  envp.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failure(fmt::format("pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = -1;
  int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    throw Failure(fmt::format("cannot start {}: {}; build it first", command[0], std::strerror(error)));
  }
  *output = ends[0];
  return pid;
}

std::string read_all(int fd) {
  std::string text;
  char buffer[65536];
  for (;;) {
    ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// Exit code, or 128 + signal.
int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Child::Child(const Places& places, const std::vector<std::string>& command, const std::string& mode)
    : places_(places) {
  std::vector<std::string> environment;
  if (!mode.empty()) {
    std::string pattern = places.images + "/latency.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      throw Failure(fmt::format("cannot make a directory in {}: {}", places.images, std::strerror(errno)));
    }
    images_ = pattern;
    environment = {"LD_PRELOAD=" + places.library(), "CKPT_DIR=" + images_, "CKPT_MODE=" + mode,
                   "CKPT_KEEP=1"};
  }
  started_ns_ = now_ns();
  pid_ = spawn(command, environment, &output_);
}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    wait_for(pid_);
  }
  if (output_ >= 0) close(output_);
  std::error_code ignored;
  if (!images_.empty()) std::filesystem::remove_all(images_, ignored);
}

double Child::seconds() const { return static_cast<double>(now_ns() - started_ns_) / 1e9; }

std::string Child::read_line(bool* end) {
  *end = false;
  for (;;) {
    size_t at = buffered_.find('\n');
    if (at != std::string::npos) {
      std::string line = buffered_.substr(0, at);
      buffered_.erase(0, at + 1);
      return line;
    }
    char buffer[4096];
    ssize_t n = read(output_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      *end = true;
      return std::exchange(buffered_, {});
    }
    buffered_.append(buffer, static_cast<size_t>(n));
  }
}

bool Child::read_until(const std::string& start) {
  for (bool end = false; !end;) {
    if (read_line(&end).starts_with(start)) return true;
  }
  return false;
}

std::string Child::finish() {
  std::string text = std::exchange(buffered_, {}) + read_all(output_);
  int code = wait_for(std::exchange(pid_, -1));
  if (code != 0) throw Failure(fmt::format("the measured program ended with {}", code));
  return text;
}

nlohmann::json Child::checkpoint() {
  int output = -1;
  pid_t pid = spawn({places_.ckpt(), "now", "--json", std::to_string(pid_)}, {}, &output);
  std::string text = read_all(output);
  close(output);
  int code = wait_for(pid);
  if (code != 0) throw Failure(fmt::format("ckpt now ended with {}", code));
  return nlohmann::json::parse(text);
}

}  // namespace latency
