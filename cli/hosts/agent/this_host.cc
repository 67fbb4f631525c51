#include "cli/hosts/agent/this_host.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "cli/hosts/job/adapters.h"
#include "cli/hosts/job/ask_job.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/slurm.h"
#include "cli/starting/preload.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

Json files_of_host() {
  Json files = Json::object();
  auto library = find_library("libckpt_rt.so");
  if (library.ok()) files["libckpt_rt.so"] = checksum_of_file(*library);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash), name = path.substr(path.rfind('/') + 1);
    if (name.starts_with("libc.so") || name.starts_with("ld-linux") || name.starts_with("libstdc++"))
      files[name] = checksum_of_file(path);
  }
  return files;
}

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  std::string text(path, n > 0 ? static_cast<size_t>(n) : 0);
  return text.substr(0, text.rfind('/'));
}

void set_environment(const Json& settings, const std::string& images, const std::string& job,
                     const std::string& host) {
  for (const auto& [name, value] : settings.items())
    setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  setenv("CKPT_DIR", images.c_str(), 1);
  setenv("CKPT_JOB", job.c_str(), 1);
  setenv("CKPT_HOSTS", (job + ":" + host).c_str(), 1);
}

// srun, which has started this agent, has set those of the agent's step.
void set_allocation(const Json& variables) {
  if (variables.empty()) return;
  // And may have bound it, one task, to one processor: all that the step has are the job's.
  cpu_set_t all;
  memset(&all, 0xff, sizeof(all));
  if (getenv("SLURM_STEP_ID") != nullptr) (void)!sched_setaffinity(0, sizeof(all), &all);
  std::vector<std::string> names;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view pair = *e;
    if (pair.starts_with("SLURM") || pair.starts_with("SRUN_") || pair.starts_with("PMI"))
      names.emplace_back(pair.substr(0, pair.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  for (const auto& [name, value] : variables.items()) setenv(name.c_str(), bytes_in(value).c_str(), 1);
}

void set_launchers(const std::string& on) {
  put_stand_ins_ahead();
  setenv("OMPI_MCA_plm_rsh_agent", on.c_str(), 1);
  setenv("OMPI_MCA_plm", "^slurm", 0);  // which would start them with srun, outside of the job
  setenv("HYDRA_LAUNCHER", "ssh", 1);
  setenv("HYDRA_LAUNCHER_EXEC", on.c_str(), 1);
  bar_mpi_from_adapters();
}

namespace {
constinit sighandler_t on_hangup_before = SIG_DFL;
}

void ignore_hangup() { on_hangup_before = signal(SIGHUP, SIG_IGN); }

int start_process(const std::vector<std::string>& words, int inherited_fd) {
  // Closed by execve: until then the process is a copy of this one, without the library, which nobody may
  // take for the program.
  int until_exec[2] = {-1, -1};
  (void)!pipe2(until_exec, O_CLOEXEC);
  const pid_t child = fork();
  if (child != 0) {
    const ScopedFd here(until_exec[0]);
    ScopedFd(until_exec[1]).reset();
    char nothing;
    while (here.valid() && child > 0 && read(here.get(), &nothing, 1) < 0 && errno == EINTR) {
    }
    return child;
  }
  fcntl(inherited_fd, F_SETFD, 0);
  setpgid(0, 0);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGHUP, on_hangup_before);
  become(words);
}

std::vector<int> descendants(int of) {
  std::multimap<int, int> children;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir("/proc"), closedir);
  while (dir != nullptr) {
    const dirent* e = readdir(dir.get());
    if (e == nullptr) break;
    const int pid = atoi(e->d_name);
    if (pid <= 0) continue;
    std::ifstream stat("/proc/" + std::string(e->d_name) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t end = text.rfind(')');
    if (end == std::string::npos || end + 4 > text.size()) continue;
    children.emplace(atoi(text.c_str() + end + 4), pid);
  }
  std::vector<int> all, left{of};
  while (!left.empty()) {
    const int pid = left.back();
    left.pop_back();
    for (auto [i, end] = children.equal_range(pid); i != end; ++i) {
      all.push_back(i->second);
      left.push_back(i->second);
    }
  }
  return all;
}

bool has_ended(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() || strchr("ZX", text[end + 2]) != nullptr;
}

bool is_stopped(int pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(tasks.c_str()), closedir);
  while (dir != nullptr) {
    const dirent* e = readdir(dir.get());
    if (e == nullptr) break;
    if (e->d_name[0] == '.') continue;
    std::ifstream stat(tasks + "/" + e->d_name + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t end = text.rfind(')');
    if (end != std::string::npos && end + 2 < text.size() && strchr("RS", text[end + 2]) != nullptr)
      return false;
  }
  return true;
}

bool has_rank(int rank) {
  const std::string number = std::to_string(rank);
  for (const int pid : descendants(getpid())) {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
      if (variable_of_process(pid, name) == number) return true;
    }
  }
  return false;
}

namespace {

std::vector<int> descendants_but(const std::set<int>& but) {
  std::vector<int> pids = descendants(getpid());
  std::erase_if(pids, [&but](int pid) { return but.contains(pid); });
  return pids;
}

}  // namespace

// A process that stands goes on when the one that leads the checkpoint is gone. So all are stopped before the
// first is ended.
bool end_descendants_standing(const std::set<int>& but) {
  const int64_t deadline = now_ns() + 5'000'000'000;
  for (bool all = false; !all;) {
    const std::vector<int> left = descendants_but(but);
    for (int pid : left) kill(pid, SIGSTOP);
    all = std::all_of(left.begin(), left.end(), is_stopped);
    if (all) break;
    if (now_ns() > deadline) {
      for (int pid : left) kill(pid, SIGCONT);
      return false;
    }
    (void)!poll(nullptr, 0, 1);
  }
  kill_descendants(but);
  return true;
}

void kill_descendants(const std::set<int>& but) {
  for (std::vector<int> left = descendants_but(but); !left.empty(); left = descendants_but(but)) {
    for (int pid : left) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    (void)!poll(nullptr, 0, 2);
  }
}

void end_descendants(const std::set<int>& but) {
  const int64_t patient_until = now_ns() + 2'000'000'000;
  std::set<int> asked;  // a program may take a second SIGTERM for impatience
  for (int signal : {SIGTERM, SIGKILL}) {
    for (std::vector<int> left = descendants_but(but); !left.empty(); left = descendants_but(but)) {
      for (int pid : left) {
        if (signal == SIGKILL || asked.insert(pid).second) kill(pid, signal);
      }
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (signal == SIGTERM && now_ns() > patient_until) break;
      (void)!poll(nullptr, 0, 20);
    }
  }
}

}  // namespace ckpt::cli
