#include "restart/files/dying_processes.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include "base/clock.h"
#include "base/files/task_text.h"
#include "base/raii_fd.h"

namespace ckpt {
namespace {

constexpr uint64_t kKill = uint64_t{1} << (SIGKILL - 1);
constexpr unsigned long kExitingFlag = 0x00000004;  // PF_EXITING, in /proc/PID/stat

bool is_to_be_killed(int pid, int tid, const char* key) {
  return (ProcText(pid, tid, "/status").number(key, 16) & kKill) != 0;
}

bool is_exiting(int pid, int tid) {
  const ProcText stat(pid, tid, "/stat");
  // Behind the name: state, five numbers, flags.
  size_t at = stat.text().rfind(')');
  for (int space = 0; space < 7 && at != std::string_view::npos; ++space) at = stat.text().find(' ', at + 1);
  return at != std::string_view::npos && (to_number(stat.text().substr(at), 10) & kExitingFlag) != 0;
}

// Readable when all threads have ended.
ScopedFd pidfd_of_process(int pid) { return ScopedFd(static_cast<int>(syscall(__NR_pidfd_open, pid, 0))); }

bool has_ended(int pidfd, int timeout_ms) {
  pollfd ended{pidfd, POLLIN, 0};
  return poll(&ended, 1, timeout_ms) == 1;
}

bool is_dying(int pid, int pidfd) {
  if (has_ended(pidfd, 0)) return false;
  // Of the whole process: stays there until the end. The kernel hands a copy to each thread, which takes it.
  if (is_to_be_killed(pid, 0, "\nShdPnd:\t")) return true;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(fmt::format("/proc/{}/task", pid).c_str()),
                                                  closedir);
  bool any = false;
  for (const dirent* e; tasks != nullptr && (e = readdir(tasks.get())) != nullptr;) {
    if (e->d_name[0] == '.') continue;
    const int tid = std::atoi(e->d_name);
    if (!is_exiting(pid, tid) && !is_to_be_killed(pid, tid, "\nSigPnd:\t")) return false;
    any = true;
  }
  return any;
}

}  // namespace

bool is_dying(int pid) {
  const ScopedFd pidfd = pidfd_of_process(pid);
  return pidfd.valid() && is_dying(pid, pidfd.get());
}

void await_dying(const std::vector<int>& ids, int64_t patience_ns) {
  const int64_t end = now_ns() + patience_ns;
  const std::set<int> wanted(ids.begin(), ids.end());
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), closedir);
  for (const dirent* e; processes != nullptr && (e = readdir(processes.get())) != nullptr;) {
    const int pid = std::atoi(e->d_name);
    if (pid <= 0 || (!wanted.contains(pid) && !wanted.contains(getpgid(pid)))) continue;
    const ScopedFd pidfd = pidfd_of_process(pid);
    if (!pidfd.valid() || !is_dying(pid, pidfd.get())) continue;
    const int64_t left_ms = (end - now_ns()) / 1'000'000;
    has_ended(pidfd.get(), static_cast<int>(std::max<int64_t>(left_ms, 0)));
  }
}

}  // namespace ckpt
