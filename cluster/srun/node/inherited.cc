#include "cluster/srun/node/inherited.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace ckpt::cluster::srun {

Inherited read_inherited() {
  Inherited now;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Umask:"))
      now.umask = static_cast<mode_t>(strtoul(line.c_str() + sizeof("Umask:"), nullptr, 8));
  }
  // The limits that Slurm hands on.
  for (const int which : {RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_STACK, RLIMIT_CORE, RLIMIT_RSS,
                          RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS}) {
    rlimit limit;
    if (getrlimit(static_cast<__rlimit_resource>(which), &limit) == 0)
      now.limits.emplace_back(which, limit.rlim_cur);
  }
  return now;
}

void set_limits(const Inherited& wanted) {
  for (const auto& [which, soft] : wanted.limits) {
    rlimit limit;
    if (getrlimit(static_cast<__rlimit_resource>(which), &limit) != 0 || limit.rlim_cur == soft) continue;
    limit.rlim_cur = std::min<rlim_t>(soft, limit.rlim_max);
    setrlimit(static_cast<__rlimit_resource>(which), &limit);
  }
}

std::string write_inherited(const Inherited& inherited) {
  std::string text = std::to_string(inherited.umask);
  for (const auto& [which, soft] : inherited.limits)
    text += " " + std::to_string(which) + " " + std::to_string(soft);
  return text;
}

bool read_inherited(const std::string& text, Inherited& inherited) {
  std::istringstream words(text);
  inherited.limits.clear();
  if (!(words >> inherited.umask)) return false;
  int which = 0;
  uint64_t soft = 0;
  while (words >> which) {
    if (!(words >> soft) || which < 0 || which >= RLIM_NLIMITS) return false;
    inherited.limits.emplace_back(which, soft);
  }
  return words.eof();
}

void close_descriptors_at_exec() {
  DIR* const all = opendir("/proc/self/fd");
  if (all == nullptr) return;
  while (const dirent* entry = readdir(all)) {
    const int fd = atoi(entry->d_name);
    if (fd <= STDERR_FILENO) continue;
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  }
  closedir(all);
}

}  // namespace ckpt::cluster::srun
