#include "cli/back/job/job_processes.h"

#include <dirent.h>
#include <fmt/core.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

namespace ckpt::cli {

namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();  // of a process that ends meanwhile an iterator throws
  return all.str();
}

bool is_in_another_namespace(int pid) {
  struct stat own, theirs;
  return stat("/proc/self/ns/pid", &own) == 0 &&
         stat(fmt::format("/proc/{}/ns/pid", pid).c_str(), &theirs) == 0 && own.st_ino != theirs.st_ino;
}

}  // namespace

bool look_at_process(int pid, JobProcess& process) {
  const std::string text = read_text(fmt::format("/proc/{}/stat", pid));
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= text.size()) return false;
  process.pid = pid;
  process.name = text.substr(open + 1, close - open - 1);
  std::istringstream fields(text.substr(close + 2));
  std::string skipped;
  fields >> process.state >> process.ppid >> process.pgid >> process.sid >> process.terminal >>
      process.foreground_group;
  int threads = 1;
  for (int field = 9; field < 20; ++field) fields >> skipped;
  fields >> threads >> skipped >> process.started;
  // A process whose first thread has ended is shown as a zombie, though other threads run.
  if (process.state == 'Z' && threads > 1) process.state = 'S';
  return static_cast<bool>(fields);
}

bool borrows_memory(const JobProcess& process) {
  return process.ppid > 1 && syscall(SYS_kcmp, process.pid, process.ppid, KCMP_VM, 0, 0) == 0;
}

bool JobProcesses::names_job(int pid) const {
  if (over_hosts_ && is_in_another_namespace(pid)) return false;
  const std::string environment = read_text(fmt::format("/proc/{}/environ", pid));
  const std::string wanted = "CKPT_JOB=" + digits_;
  for (size_t at = environment.find(wanted); at != std::string::npos; at = environment.find(wanted, at + 1)) {
    if (at == 0 || environment[at - 1] == '\0') return true;
  }
  return read_text(fmt::format("/proc/{}/maps", pid)).find("ckpt_job:" + digits_) != std::string::npos;
}

std::vector<JobProcess> JobProcesses::list() {
  std::set<int> not_meant;
  for (int pid = getpid(); pid > 1;) {
    JobProcess own;
    not_meant.insert(pid);
    pid = look_at_process(pid, own) ? own.ppid : 0;
  }
  std::map<int, JobProcess> all;
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  while (const dirent* entry = directory != nullptr ? readdir(directory.get()) : nullptr) {
    JobProcess process;
    const int pid = std::atoi(entry->d_name);
    if (pid > 0 && look_at_process(pid, process)) all.emplace(pid, std::move(process));
  }
  std::map<int, bool> in_job;
  std::vector<JobProcess> found;
  // A parent may have a higher number than its child.
  auto belongs = [&](auto&& self, int pid) -> bool {
    const auto known = in_job.find(pid);
    if (known != in_job.end()) return known->second;
    const auto process = all.find(pid);
    if (process == all.end()) return in_job[pid] = false;
    in_job[pid] = false;
    bool member = members_.count(pid) != 0;
    if (!member && not_meant.count(pid) == 0) {
      member = self(self, process->second.ppid);
      const auto stranger = strangers_.find(pid);
      if (!member && (stranger == strangers_.end() || stranger->second != process->second.started))
        member = !process->second.ended() && names_job(pid);
      if (!member) strangers_[pid] = process->second.started;
    }
    return in_job[pid] = member;
  };
  for (const auto& [pid, process] : all) {
    if (belongs(belongs, pid)) found.push_back(process);
  }
  return found;
}

}  // namespace ckpt::cli
