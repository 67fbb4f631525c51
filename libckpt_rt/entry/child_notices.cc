#include "libckpt_rt/entry/child_notices.h"

#include <errno.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>

#include <string_view>

#include "base/sys.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::child_notices {
namespace {

// As in /proc/PID/stat; '\0': it cannot be read.
char state_of(int pid) {
  char path[32], text[512];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/stat", pid).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  const std::string_view all(text, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t name_end = all.rfind(')');
  return name_end == all.npos || name_end + 2 >= all.size() ? '\0' : all[name_end + 2];
}

// No child of ours any more, or not of this job; stopped itself; or not to be told where it is.
bool may_be_stopped(int pid) {
  const int any = WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT;
  const char state = state_of(pid);
  return sys::call(__NR_waitid, P_PID, pid, 0L, any, 0L) == 0 &&
         (state == 'R' || state == 'S' || state == 'D');
}

constexpr int kMostLooks = 1000;

// Takes a SIGCHLD that is pending, or comes within a millisecond.
bool is_told(siginfo_t& told) {
  const uint64_t child = 1ull << (SIGCHLD - 1);
  constexpr timespec kEach{0, 1'000'000};
  return sys::call(__NR_rt_sigtimedwait, &child, &told, &kEach, sizeof(child)) == SIGCHLD;
}

bool await_stop(int pid) {
  siginfo_t stopped{}, told{};
  for (int looks = 0; looks < kMostLooks; ++looks) {
    if (sys::call(__NR_waitid, P_PID, pid, &stopped, WSTOPPED | WNOHANG, 0L) != 0) return false;
    if (stopped.si_pid == pid) return true;
    is_told(told);
  }
  return false;
}

// A child itself sends its parent the signal that it goes on, on its way out of the stop: before it sleeps.
void await_notice(int pid) {
  siginfo_t told{};
  for (int looks = 0; looks < kMostLooks && state_of(pid) != 'S'; ++looks) {
    if (is_told(told) && told.si_pid == pid && told.si_code == CLD_CONTINUED) return;
  }
}

// A signal waits for the whole process.
bool has_pending(int pid, int signal) {
  char path[32], text[4096];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/status", pid).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  const std::string_view all(text, n > 0 ? static_cast<size_t>(n) : 0);
  constexpr std::string_view kMark = "\nShdPnd:\t";
  size_t at = all.find(kMark);
  if (at == all.npos) return false;
  uint64_t set = 0;
  for (at += kMark.size(); at < all.size() && all[at] != '\n'; ++at)
    set = set << 4 | static_cast<uint64_t>(all[at] <= '9' ? all[at] - '0' : all[at] - 'a' + 10);
  return (set >> (signal - 1) & 1) != 0;
}

bool is_alive(int pid) {
  const char state = state_of(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}

// Of signals that are blocked here, all that have come for the process.
void drop_pending(int signal) {
  const uint64_t set = 1ull << (signal - 1);
  constexpr timespec kNow{0, 0};
  while (sys::call(__NR_rt_sigtimedwait, &set, 0L, &kNow, sizeof(set)) == signal) {
  }
}

}  // namespace

long take(uint32_t stopped_children) {
  for (uint32_t i = 0; i < stopped_children; ++i) {
    if (const long r = sys::call(__NR_waitid, P_ALL, 0L, 0L, WSTOPPED, 0L); r != 0) return r;
  }
  drop_pending(SIGCHLD);
  return 0;
}

// They are stopped once more, and continued. They have all signals blocked, and nothing of theirs runs yet.
void continue_again(const ContinuedChildren& all) {
  for (int i = 0; i < all.count && i < ContinuedChildren::kMost; ++i) {
    const int pid = all.pids[i];
    if (!may_be_stopped(pid) || sys::call(__NR_kill, pid, SIGSTOP) != 0) continue;
    const bool has_stopped = await_stop(pid);
    drop_pending(SIGCHLD);
    sys::call(__NR_kill, pid, SIGCONT);
    if (has_stopped) await_notice(pid);
    siginfo_t told{};
    while (has_pending(pid, SIGCONT) && is_alive(pid)) is_told(told);
  }
  drop_pending(SIGCHLD);
}

void take_until_ready(int fd) {
  const uint64_t set = 1ull << (SIGCONT - 1);
  const long signals = sys::call(__NR_signalfd4, -1L, &set, sizeof(set), SFD_CLOEXEC);
  // Where no descriptor is left SIGCONT is looked for each millisecond.
  const bool tells = !sys::failed(signals);
  for (;;) {
    pollfd wait[2] = {{fd, POLLIN, 0}, {static_cast<int>(signals), POLLIN, 0}};
    const long r = sys::call(__NR_poll, wait, tells ? 2L : 1L, tells ? -1L : 1L);
    if (r == -EINTR) continue;
    if (r < 0 || wait[0].revents != 0) break;
    drop_pending(SIGCONT);
  }
  if (tells) sys::call(__NR_close, signals);
}

}  // namespace ckpt::child_notices
