#include "libckpt_rt/capture/descriptors/kinds/terminal_holders.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <string_view>

#include "base/files/directory_scan.h"
#include "base/files/task_text.h"
#include "base/raii_fd.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::terminal_holders {
namespace {

constexpr int kMostAbove = 64;

bool has_master(int pid, int64_t number) {
  const ProcFile directory(pid, "/fd");
  if (directory.fd() < 0) return false;
  bool found = false;
  scan_directory(directory.fd(), [&](std::string_view name) {
    char target[32];
    if (found || name.starts_with('.')) return;
    const long n = sys::call(__NR_readlinkat, directory.fd(), name.data(), target, sizeof(target));
    const std::string_view path(target, n > 0 ? static_cast<size_t>(n) : 0);
    if (!path.ends_with("/ptmx")) return;
    found = number_of_master(pid, 0, static_cast<int>(to_number(name, 10))) == number;
  });
  return found;
}

int parent_of(int pid) { return static_cast<int>(ProcText(pid, 0, "/status").number("\nPPid:\t", 10)); }

}  // namespace

int64_t number_of_master(int pid, int tid, int fd) {
  constexpr std::string_view kNumber = "tty-index:\t";
  char name[32];
  *fmt::format_to_n(name, sizeof(name) - 1, "/fdinfo/{}", fd).out = '\0';
  const ProcText info(pid, tid, name);
  const size_t at = info.text().find(kNumber);
  if (at == std::string_view::npos) return -1;
  return static_cast<int64_t>(to_number(info.text().substr(at + kNumber.size()), 10));
}

int above_job(int first, int64_t number) {
  if (first <= 0 || number < 0) return 0;
  int pid = parent_of(first);
  for (int i = 0; i < kMostAbove && pid > 1; ++i, pid = parent_of(pid)) {
    if (has_master(pid, number)) return pid;
  }
  return 0;
}

}  // namespace ckpt::terminal_holders
