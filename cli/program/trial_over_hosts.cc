#include "cli/program/trial_over_hosts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/job/users.h"
#include "cli/program/end_signals.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// Beside where `ckpt run` would have put the images: what hosts share there they share here.
class TrialDirectory {
 public:
  TrialDirectory(const std::string& launch, const std::vector<std::string>& hosts, const EndSignals& signals)
      : launch_(launch), hosts_(hosts), signals_(signals) {
    std::error_code ignored;
    std::string name = (std::filesystem::current_path(ignored) / "ckpt-check-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TrialDirectory() {
    if (path_.empty()) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    // Each host may have one of its own. ssh gives these words to a shell: none may mean something to it.
    if (path_.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") !=
        std::string::npos) {
      fmt::print(stderr, "ckpt: {} may be left on the hosts: remove it there\n", path_);
      return;
    }
    for (const std::string& host : hosts_) {
      std::vector<std::string> words = launch_words(launch_, host);
      words.insert(words.end(), {"rm", "-rf", path_});
      (void)run_command(words, true, -1, {-1, signals_.for_command().mask});
    }
  }
  TrialDirectory(const TrialDirectory&) = delete;
  TrialDirectory& operator=(const TrialDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string launch_;
  const std::vector<std::string> hosts_;
  const EndSignals& signals_;
  std::string path_;
};

// The job: `ckpt run --hosts`, whose end is its end on all hosts.
class TrialJob {
 public:
  // Its output goes to standard error: standard output is for what is found.
  TrialJob(std::vector<std::string> words, const EndSignals& signals) : signals_(signals) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) {
      if (pid_ > 0) process_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
      return;
    }
    signals.put_back();
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // no trial outlives the command
    dup2(STDERR_FILENO, STDOUT_FILENO);
    for (const char* name : {"CKPT_TO", "CKPT_EVERY", "CKPT_JOB"}) unsetenv(name);
    execv(argv[0], argv.data());
    _exit(static_cast<int>(ExitCode::kNotFound));
  }
  ~TrialJob() { end(); }
  TrialJob(const TrialJob&) = delete;
  TrialJob& operator=(const TrialJob&) = delete;

  pid_t pid() const { return pid_; }
  // The job has ended meanwhile, or the trial is to end.
  bool ends_within(int64_t ns) { return wait(ns, signals_.fd()) || signals_.came(); }
  // Its exit code; once it has ended.
  int code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }
  // SIGTERM: the agents end all that is on their hosts. A head that hangs is killed, and they notice.
  void end() {
    constexpr int64_t kEndNs = 60'000'000'000;
    if (pid_ <= 0 || ended_) return;
    kill(pid_, SIGTERM);
    if (wait(kEndNs, -1)) return;
    kill(pid_, SIGKILL);
    while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
  }

 private:
  // True: it has ended. Until then, or until that descriptor is readable.
  bool wait(int64_t ns, int or_readable) {
    const int64_t deadline = now_ns() + ns;
    for (int64_t left; !ended_ && (left = deadline - now_ns()) > 0;) {
      if (waitpid(pid_, &status_, WNOHANG) == pid_) {
        ended_ = true;
        break;
      }
      // Where there is no pidfd nothing wakes: look again soon.
      constexpr int64_t kLookNs = 20'000'000;
      if (!process_.valid()) left = std::min(left, kLookNs);
      pollfd ends[2] = {{process_.get(), POLLIN, 0}, {or_readable, POLLIN, 0}};
      (void)!poll(ends, 2, static_cast<int>(left / 1'000'000 + 1));
      if (ends[1].revents != 0) break;
    }
    return ended_;
  }

  const EndSignals& signals_;
  pid_t pid_ = -1;
  ScopedFd process_;
  bool ended_ = false;
  int status_ = 0;
};

// The head listens for users once the program runs on all hosts.
bool is_led(pid_t head) {
  const std::string name = "@" + head_socket_name(head);
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with(name)) return true;
  }
  return false;
}

bool ends_before_it_is_led(TrialJob& job) {
  constexpr int64_t kLookNs = 20'000'000;
  while (!is_led(job.pid())) {
    if (job.ends_within(kLookNs)) return true;
  }
  return false;
}

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  for (const char* name : {"ckpt: ", "ckpt-restart: "}) {
    if (line.starts_with(name)) line.erase(0, strlen(name));
  }
  return line;
}

ExitCode code_of(const Said& said) {
  return WIFEXITED(said.status) ? static_cast<ExitCode>(WEXITSTATUS(said.status)) : ExitCode::kInternal;
}

}  // namespace

Trial try_over_hosts(const std::string& hosts, const std::string& launch,
                     const std::vector<std::string>& program, const TrialMoment& moment) {
  Trial trial;
  const auto give_up = [&trial](ExitCode code, const char* id, const char* title, const std::string& why,
                                const char* effect) -> Trial& {
    trial.findings.push_back({id, title, Level::kMissing, why, effect, ""});
    trial.exit = code;
    return trial;
  };
  auto names = split_hosts(hosts, false);
  if (!names.ok())
    return give_up(names.error().code, "hosts", "hosts", std::string(names.error().message()), "");
  const std::string ckpt = command_path("ckpt");
  const EndSignals signals;
  auto there = run_command({ckpt, "hosts", "--launch", launch, hosts}, true, -1, signals.for_command());
  if (!there.ok())
    return give_up(there.error().code, "hosts", "hosts", std::string(there.error().message()), "");
  if (there->status != 0)
    return give_up(code_of(*there), "hosts", "hosts", first_line(there->errors),
                   "a job cannot be spread over them");
  trial.findings.push_back(
      {"hosts", "hosts", Level::kGood, hosts + ": the same ckpt and C library on all", "", ""});
  if (signals.came()) return interrupted(trial);
  const TrialDirectory scratch(launch, *names, signals);
  if (scratch.path().empty())
    return give_up(ExitCode::kCannotCreate, "directory", "no directory for the trial",
                   fmt::format("the current directory: {}", strerror(errno)), "it cannot be saved");
  const std::string images = scratch.path() + "/images";
  std::vector<std::string> words{ckpt, "run", "--hosts", hosts, "--launch", launch, "--dir", images, "--"};
  words.insert(words.end(), program.begin(), program.end());
  TrialJob job(words, signals);
  if (job.pid() < 0)
    return give_up(ExitCode::kSystem, "start", "not started", strerror(errno), "it cannot be saved");
  const auto has_ended = [&]() -> Trial& {
    if (signals.came()) return interrupted(trial);
    trial.findings.push_back({"ended", "trial", Level::kLimited,
                              fmt::format("it had ended before the checkpoint, with {}", job.code()),
                              "it was looked at only",
                              "take the checkpoint earlier, with --after or --when"});
    trial.exit = ExitCode::kTimeout;
    return trial;
  };
  if (ends_before_it_is_led(job) || ends_before(moment, [&](int64_t ns) { return job.ends_within(ns); }))
    return has_ended();
  auto now = run_command({ckpt, "now", "--json", std::to_string(job.pid())}, true, -1, signals.for_command());
  if (signals.came()) return interrupted(trial);
  // The head has stopped listening: the program has ended, and the head is about to.
  constexpr int64_t kEndNs = 60'000'000'000;
  if (now.ok() && code_of(*now) == ExitCode::kNoProcess && job.ends_within(kEndNs)) return has_ended();
  job.end();
  if (!now.ok())
    return give_up(now.error().code, "checkpoint", "no checkpoint", std::string(now.error().message()), "");
  const auto answer = nlohmann::json::parse(now->text, nullptr, false);
  if (now->status != 0 && answer.is_object()) {
    add_notes_of_images(answer, "no checkpoint counts with it", trial.findings);
    trial.exit = code_of(*now);
    return trial;
  }
  if (!answer.is_object())
    return give_up(now->status == 0 ? ExitCode::kInternal : code_of(*now), "checkpoint", "cannot be saved",
                   first_line(now->errors), "it cannot be saved");
  trial.findings.push_back({"saved", "checkpoint", Level::kGood,
                            fmt::format("a job on {} hosts, all stood {:.3g} ms", answer.value("hosts", 0),
                                        static_cast<double>(answer.value("stop_ns", int64_t{0})) / 1e6),
                            "", ""});
  add_notes_of_images(answer, "", trial.findings);
  auto check = run_command({command_path("ckpt-restart"), "--check", "--hosts", hosts, "--launch", launch,
                            answer.value("checkpoint", images)},
                           true, -1, signals.for_command());
  if (!check.ok() || check->status != 0)
    return give_up(ExitCode::kNotRestartable, "restart", "cannot be restarted there",
                   check.ok() ? first_line(check->errors) : std::string(check.error().message()), "");
  trial.findings.push_back({"restart", "restart", Level::kGood, "all that it needs is on the hosts", "", ""});
  return trial;
}

}  // namespace ckpt::cli
