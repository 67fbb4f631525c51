#include "libckpt_rt/entry/child_notices.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>

#include "base/files/task_text.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::child_notices {
namespace {

// As in /proc/PID/status; '\0': it cannot be read.
char state_of(int pid) { return ProcText(pid, 0, "/status").state(); }

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
  return (ProcText(pid, 0, "/status").number("\nShdPnd:\t", 16) >> (signal - 1) & 1) != 0;
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
