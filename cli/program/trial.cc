#include "cli/program/trial.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "cli/ask/children.h"
#include "cli/ask/target.h"
#include "cli/image/restartable.h"
#include "cli/program/end_signals.h"
#include "cli/starting/program.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

namespace fs = std::filesystem;

// Images of the trial.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (fs::temp_directory_path(ignored_) / "ckpt-check-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~ScratchDirectory() {
    if (!path_.empty()) fs::remove_all(path_, ignored_);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::error_code ignored_;
  std::string path_;
};

// All below this process, which adopts whom they leave behind.
std::vector<pid_t> all_below() {
  std::vector<pid_t> all = children_of(getpid());
  for (size_t i = 0; i < all.size(); ++i) {
    for (pid_t child : children_of(all[i])) all.push_back(child);
  }
  return all;
}

// A stopped process makes no new processes: so all are stopped first, until no process is new.
void kill_all_below() {
  for (std::set<pid_t> known;;) {
    const size_t before = known.size();
    for (pid_t pid : all_below()) {
      if (known.insert(pid).second) kill(pid, SIGSTOP);
    }
    if (known.size() == before) break;
  }
  for (std::vector<pid_t> all; !(all = all_below()).empty();) {
    for (pid_t pid : all) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

// Its output goes to standard error: standard output is for what is found.
pid_t start(const std::vector<std::string>& program, const std::string& directory,
            const EndSignals& signals) {
  std::vector<std::string> words{command_path("ckpt"), "run", "--dir", directory, "--"};
  words.insert(words.end(), program.begin(), program.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  signals.put_back();
  dup2(STDERR_FILENO, STDOUT_FILENO);
  for (const char* name : {"CKPT_TO", "CKPT_EVERY", "CKPT_JOB"}) unsetenv(name);
  execv(argv[0], argv.data());
  _exit(static_cast<int>(ExitCode::kNotFound));
}

// Or the trial is to end.
bool ends_within(pid_t pid, int64_t ns, const EndSignals& signals) {
  const ScopedFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const int64_t deadline = now_ns() + ns;
  for (int64_t left; (left = deadline - now_ns()) > 0;) {
    pollfd ends[2] = {{process.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    if (poll(ends, 2, static_cast<int>(left / 1'000'000 + 1)) > 0) return true;
  }
  return false;
}

// Waits until the library in the program can be asked: how long the program runs counts from then, however
// long a busy machine takes to start it. True: it has ended. A program that never can be asked is asked in
// the end, for the reason.
bool ends_before_it_runs(pid_t pid, const EndSignals& signals) {
  constexpr int64_t kStartNs = 30'000'000'000, kLookNs = 5'000'000;
  for (const int64_t deadline = now_ns() + kStartNs; now_ns() < deadline;) {
    const auto target = examine_target(pid);
    if (target.ok()) return false;
    // Before exec the library is not there, and then it does not handle its signal yet.
    if (target.error().code != ExitCode::kNoProcess && target.error().code != ExitCode::kUnavailable)
      return false;
    if (ends_within(pid, kLookNs, signals)) return true;
  }
  return false;
}

// Libraries that use what no image can hold, once they have opened it.
void look_at_libraries(std::vector<Finding>& findings) {
  static constexpr struct {
    const char *name, *what;
  } kKnown[] = {{"/libcuda.so", "graphics processors (CUDA)"},
                {"/libamdhip64.so", "graphics processors (HIP)"},
                {"/libOpenCL.so", "graphics processors (OpenCL)"},
                {"/libibverbs.so", "InfiniBand adapters"}};
  std::set<std::string> said;
  for (pid_t pid : all_below()) {
    std::ifstream in(fmt::format("/proc/{}/maps", pid), std::ios::binary);
    const std::string maps((std::istreambuf_iterator<char>(in)), {});
    for (const auto& known : kKnown) {
      if (maps.find(known.name) == std::string::npos || !said.insert(known.name).second) continue;
      findings.push_back({"library", "a library for devices", Level::kLimited,
                          fmt::format("process {} has loaded {}", pid, known.name + 1),
                          fmt::format("a checkpoint with {} in use cannot be restarted", known.what),
                          "look again with --after at a moment at which it is at work"});
    }
  }
}

ExitCode worst(const std::vector<Finding>& findings, ExitCode code) {
  for (const Finding& f : findings) {
    if (f.level == Level::kMissing && code == ExitCode::kOk) return ExitCode::kNotRestartable;
  }
  return code;
}

void add_missing(std::vector<Finding>& findings, const char* id, const char* title, const std::string& detail,
                 const char* effect) {
  findings.push_back({id, title, Level::kMissing, detail, effect, ""});
}

// What `ckpt now` has said.
void take_answer(const nlohmann::json& answer, std::vector<Finding>& findings) {
  const int members = answer.value("members", 0);
  findings.push_back(
      {"saved", "checkpoint", Level::kGood,
       fmt::format(
           "{}, mode {}, {} bytes of memory, the threads stood {:.3g} ms",
           members > 0 ? fmt::format("a job of {} processes", members) : std::string("one process"),
           answer.value("mode", ""), answer.value("bytes_memory", uint64_t{0}),
           static_cast<double>(answer.value(members > 0 ? "job_pause_ns" : "pause_ns", int64_t{0})) / 1e6),
       "", ""});
  add_notes_of_images(answer, "the image is written, and no restart of it can be", findings);
}

}  // namespace

void add_notes_of_images(const Json& answer, const char* effect, std::vector<Finding>& findings) {
  for (const auto& note : answer.value("notes", Json::array()))
    findings.push_back({"note", "not as it was", Level::kLimited, note.get<std::string>(), "", ""});
  for (const auto& why : answer.value("why_not_restartable", Json::array()))
    add_missing(findings, "no_restart", "cannot be restarted", why.get<std::string>(), effect);
}

Trial& interrupted(Trial& trial) {
  trial.findings.push_back({"interrupted", "trial", Level::kLimited, "a signal has ended it",
                            "no checkpoint was taken", "let it come to its end"});
  trial.exit = ExitCode::kTimeout;
  return trial;
}

Trial try_program(const std::vector<std::string>& program, const TrialMoment& moment) {
  Trial trial;
  const auto give_up = [&trial](const Error& error, const char* id, const char* title) {
    add_missing(trial.findings, id, title, std::string(error.message()), "it cannot be saved");
    trial.exit = error.code;
    return trial;
  };
  auto path = find_program(program[0]);
  if (!path.ok()) return give_up(path.error(), "program", "no such program");
  if (const auto fits = check_program(*path); !fits.ok())
    return give_up(fits.error(), "preload", "the library cannot be in it");
  trial.findings.push_back(
      {"preload", "program", Level::kGood, *path + ": the library can be in it", "", ""});
  const EndSignals signals;
  const ScratchDirectory scratch;
  if (scratch.path().empty())
    return give_up(
        failure(ExitCode::kCannotCreate, "$TMPDIR", strerror(errno), "name another directory with TMPDIR"),
        "directory", "no directory for the trial");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t child = start(program, scratch.path() + "/images", signals);
  if (child < 0)
    return give_up(failure(ExitCode::kSystem, *path, strerror(errno), "end other programs"), "start",
                   "not started");
  if (ends_before_it_runs(child, signals) ||
      ends_before(moment, [&](int64_t ns) { return ends_within(child, ns, signals); })) {
    kill_all_below();
    if (signals.came()) return interrupted(trial);
    trial.findings.push_back({"ended", "trial", Level::kLimited, "it had ended before the checkpoint",
                              "it was looked at only",
                              "take the checkpoint earlier, with --after or --when"});
    trial.exit = ExitCode::kTimeout;
    return trial;
  }
  look_at_libraries(trial.findings);
  auto now = run_command({command_path("ckpt"), "now", "--json", std::to_string(child)}, true, -1,
                         signals.for_command());
  kill_all_below();
  if (!now.ok()) return give_up(now.error(), "checkpoint", "no checkpoint");
  const auto answer = nlohmann::json::parse(now->text, nullptr, false);
  if (!answer.is_object()) {
    const int code =
        WIFEXITED(now->status) ? WEXITSTATUS(now->status) : static_cast<int>(ExitCode::kInternal);
    std::string why = now->errors.substr(0, now->errors.find('\n'));
    if (why.starts_with("ckpt: ")) why.erase(0, 6);
    return give_up(make_error(static_cast<ExitCode>(code), 0, "{}", why), "checkpoint", "cannot be saved");
  }
  take_answer(answer, trial.findings);
  trial.exit = worst(trial.findings, ExitCode::kOk);
  if (trial.exit == ExitCode::kOk) {
    const std::string job = answer.value("job", "");
    const auto why = why_not_restartable_here(job.empty() ? answer.value("image", "") : job, "");
    if (why) {
      add_missing(trial.findings, "restart", "cannot be restarted here", std::string(why->message()), "");
      trial.exit = ExitCode::kNotRestartable;
    } else {
      trial.findings.push_back({"restart", "restart", Level::kGood, "all that it needs is here", "", ""});
    }
  }
  return trial;
}

}  // namespace ckpt::cli
