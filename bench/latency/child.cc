#include "bench/latency/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace latency {

int64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

namespace {

// Starts a program that ends with us. error < 0: standard error is ours.
pid_t start(const std::vector<std::string>& command, const std::vector<std::string>& extra_environment,
            const std::string& join_file, int output, int error) {
  std::vector<char*> argv, envp;
  for (const auto& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  for (char** e = environ; *e != nullptr; ++e) {
    if (std::strncmp(*e, "CKPT_", 5) != 0 && std::strncmp(*e, "LD_PRELOAD=", 11) != 0) envp.push_back(*e);
  }
  for (const auto& e : extra_environment) envp.push_back(const_cast<char*>(e.c_str()));
  envp.push_back(nullptr);
  pid_t pid = fork();
  if (pid < 0) throw Failure(fmt::format("fork: {}", std::strerror(errno)));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!join_file.empty()) {
    int fd = open(join_file.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1) _exit(126);
  }
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0) _exit(126);
  if (error >= 0 && dup2(error, STDERR_FILENO) < 0) _exit(126);
  execvpe(argv[0], argv.data(), envp.data());
  _exit(127);
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

struct ToolRun {
  int code;
  std::string output, error;
};
ToolRun run_tool(const std::vector<std::string>& command) {
  int out = memfd_create("output", MFD_CLOEXEC), err = memfd_create("error", MFD_CLOEXEC);
  if (out < 0 || err < 0) throw Failure(fmt::format("memfd_create: {}", std::strerror(errno)));
  ToolRun run{};
  run.code = wait_for(start(command, {}, "", out, err));
  lseek(out, 0, SEEK_SET);
  lseek(err, 0, SEEK_SET);
  run.output = read_all(out);
  run.error = read_all(err);
  close(out);
  close(err);
  return run;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Child::Child(const Places& places, const std::vector<std::string>& command, Setup setup)
    : places_(places), setup_(std::move(setup)) {
  std::string pattern = places.images + "/latency.XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    throw Failure(fmt::format("cannot make a directory in {}: {}", places.images, std::strerror(errno)));
  }
  directory_ = pattern;
  std::vector<std::string> environment;
  if (setup_.method == kPlainFork) {
    environment = {"LD_PRELOAD=" + places.plain_fork(), "PLAIN_FORK_FILE=" + directory_ + "/image"};
  } else if (setup_.method != kNone && setup_.method != kCriu) {
    environment = {
        "LD_PRELOAD=" + places.library(), "CKPT_DIR=" + directory_, "CKPT_MODE=" + setup_.method,
        "CKPT_KEEP=1",
        // Of one thread: the host may take a processor away for seconds. That is measured, not an error.
        "CKPT_STOP_TIMEOUT=30s"};
    if (!setup_.segment.empty()) environment.push_back("CKPT_SEGMENT=" + setup_.segment);
    if (!setup_.pool.empty()) environment.push_back("CKPT_POOL=" + setup_.pool);
    for (const std::string& setting : setup_.settings) {
      environment.push_back(setting);
      if (setting.starts_with("CKPT_HEAP=jemalloc")) environment.front() += ":" + places.heap();
    }
  }
  std::vector<std::string> with_directory = command;
  for (auto& word : with_directory) {
    if (size_t at = word.find("{directory}"); at != std::string::npos) word.replace(at, 11, directory_);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failure(fmt::format("pipe: {}", std::strerror(errno)));
  started_ns_ = now_ns();
  pid_ = start(with_directory, environment, setup_.cgroup_join_file, ends[1], -1);
  close(ends[1]);
  output_ = ends[0];
  reader_ = std::thread([this] { read_output(); });
}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    wait_for(pid_);
  }
  reader_.join();
  close(output_);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void Child::read_output() {
  std::string rest;
  char buffer[4096];
  for (;;) {
    ssize_t n = read(output_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    std::lock_guard lock(mutex_);
    if (n > 0) rest.append(buffer, static_cast<size_t>(n));
    for (size_t at; (at = rest.find('\n')) != std::string::npos; rest.erase(0, at + 1)) {
      lines_.push_back({now_ns(), rest.substr(0, at)});
    }
    if (n <= 0) end_ = true;
    changed_.notify_all();
    if (n <= 0) return;
  }
}

Child::Line Child::read_until(const std::string& start) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return end_ || !lines_.empty(); });
    if (lines_.empty()) throw Failure("the measured program ended early");
    Line line = lines_.front();
    lines_.pop_front();
    if (line.text.starts_with(start)) return line;
  }
}

std::vector<Child::Line> Child::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return end_; });
  int code = wait_for(std::exchange(pid_, -1));
  if (code != 0) throw Failure(fmt::format("the measured program ended with {}", code));
  return {lines_.begin(), lines_.end()};
}

void Child::terminate() { kill(pid_, SIGTERM); }

double Child::seconds() const { return static_cast<double>(now_ns() - started_ns_) / 1e9; }

Checkpoint Child::checkpoint() {
  Checkpoint c{};
  c.begin_ns = now_ns();
  if (setup_.method == kPlainFork)
    fork_plainly();
  else if (setup_.method == kCriu)
    dump_with_criu();
  else
    c.answer = ask_ckpt();
  c.end_ns = now_ns();
  return c;
}

nlohmann::json Child::ask_ckpt() {
  ToolRun run = run_tool({places_.ckpt(), "now", "--json", std::to_string(pid_)});
  if (run.code != 0)
    throw Failure(fmt::format("ckpt now ended with {}: {}", run.code, first_line(run.error)));
  return nlohmann::json::parse(run.output);
}

void Child::fork_plainly() {
  std::error_code ignored;
  std::filesystem::remove(directory_ + "/image", ignored);
  int watch = inotify_init1(IN_CLOEXEC);
  if (watch < 0 || inotify_add_watch(watch, directory_.c_str(), IN_MOVED_TO) < 0) {
    throw Failure(fmt::format("inotify: {}", std::strerror(errno)));
  }
  kill(pid_, SIGUSR2);
  constexpr int kLongestMs = 300'000;
  pollfd p{watch, POLLIN, 0};
  int n = poll(&p, 1, kLongestMs);
  close(watch);
  if (n <= 0) throw Failure("the forked child did not write its file in five minutes");
}

void Child::dump_with_criu() {
  std::string images = directory_ + "/criu";
  std::filesystem::remove_all(images);
  std::filesystem::create_directory(images);
  ToolRun run = run_tool({"criu", "dump", "--leave-running", "--tree", std::to_string(pid_), "--images-dir",
                          images, "--log-file", "log", "-v1"});
  if (run.code == 127)
    throw Unavailable("criu is not installed; scripts/latency.sh installs it where apt can");
  if (run.code == 0) return;
  std::ifstream log(images + "/log");
  std::string why, line;
  for (size_t lines = 0; lines < 6 && std::getline(log, line); ++lines)
    why += (why.empty() ? "" : "; ") + line;
  if (why.empty()) why = first_line(run.error.empty() ? run.output : run.error);
  throw Unavailable(fmt::format("criu dump ended with {}: {}", run.code, why));
}

}  // namespace latency
