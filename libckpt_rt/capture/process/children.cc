#include "libckpt_rt/capture/process/children.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/sys.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// "12 (name) S 10 ...": of the fields after the name the n-th, from 0; 0 if it is not there.
int64_t field(std::string_view text, int n) {
  for (; n > 0 && !text.empty(); --n) {
    const size_t blank = text.find(' ');
    text.remove_prefix(blank == std::string_view::npos ? text.size() : blank + 1);
  }
  uint64_t value = 0;
  return number_after(text.substr(0, text.find(' ')), "", 10, value) ? static_cast<int64_t>(value) : 0;
}

// As wait(2) gives it; /proc shows that of a process with more rights than ours as 0. Below 0: not known.
int32_t status_of_ended(int pid) {
  siginfo_t ended{};
  const long options = WEXITED | WNOHANG | WNOWAIT | __WALL;
  if (sys::call(__NR_waitid, P_PID, pid, &ended, options, 0L) != 0 || ended.si_pid != pid) return -1;
  if (ended.si_code == CLD_EXITED) return (ended.si_status & 0xff) << 8;
  return (ended.si_status & 0x7f) | (ended.si_code == CLD_DUMPED ? 0x80 : 0);
}

bool describe(int pid, LostChild& child) {
  char path[64], text[1024];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/stat", pid).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  const std::string_view all(text, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t open = all.find('('), close = all.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close + 2 >= all.size())
    return false;
  const std::string_view name = all.substr(open + 1, close - open - 1), fields = all.substr(close + 2);
  constexpr int kExitSignal = 35,
                kExitCode = 49;  // proc(5) has them as 38 and 52; the first after the name is 3
  const bool ended = fields[0] == 'Z' || fields[0] == 'X';
  child = {};
  child.record.pid = pid;
  child.record.state = static_cast<uint32_t>(ended ? ChildState::kEnded : ChildState::kLives);
  child.record.exit_signal = static_cast<int32_t>(field(fields, kExitSignal));
  if (ended) {
    const int32_t status = status_of_ended(pid);
    child.record.status = status >= 0 ? status : static_cast<int32_t>(field(fields, kExitCode));
  }
  child.record.name_len = static_cast<uint32_t>(std::min(name.size(), sizeof(child.name)));
  std::memcpy(child.name, name.data(), child.record.name_len);
  return child.record.exit_signal > 0;
}

}  // namespace

std::span<const LostChild> list_children(Arena& arena) {
  constexpr size_t kText = 256 << 10;
  ArenaVector<int> threads(arena);
  ArenaVector<LostChild> children(arena);
  auto* text = static_cast<char*>(arena.allocate(kText, 1));
  if (text == nullptr || !list_tasks(threads)) return {};
  for (size_t t = 0; t < threads.size(); ++t) {
    const long n = read_small_file(TaskPath(threads[t], "children").c_str(), text, kText);
    std::string_view left(text, n > 0 ? static_cast<size_t>(n) : 0);
    while (!left.empty()) {
      const std::string_view word = left.substr(0, left.find(' '));
      left.remove_prefix(std::min(left.size(), word.size() + 1));
      uint64_t pid = 0;
      LostChild child;
      if (!number_after(word, "", 10, pid) || !describe(static_cast<int>(pid), child)) continue;
      if (!children.push_back(child)) return children.span();
    }
  }
  return children.span();
}

}  // namespace ckpt
