#include "libckpt_rt/entry/child_notices.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
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

// Nothing is written to it before all of the job stand ready, us included.
bool has_ended(int pipe) {
  pollfd wait{pipe, POLLIN, 0};
  return sys::call(__NR_poll, &wait, 1L, 0L) > 0;
}

// One who was continued by somebody stops again (wait_for_job), and may be told of twice.
long take_stop(int* seen, uint32_t& count) {
  siginfo_t stopped{};
  const long r = sys::call(__NR_waitid, P_ALL, 0L, &stopped, WSTOPPED | WNOHANG, 0L);
  if (r != 0 || stopped.si_pid == 0) return r;
  for (uint32_t i = 0; i < count; ++i) {
    if (seen[i] == stopped.si_pid) return 1;
  }
  seen[count++] = stopped.si_pid;
  return 1;
}

constexpr int kMostLevels = 64;

// From below: the children of one that has ended are somebody else's.
void end_children_of(int pid, int level) {
  char path[48], text[128];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/task/{}/children", pid, pid).out = '\0';
  const long fd = sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return;
  int child = 0;
  for (long n; (n = sys::call(__NR_read, fd, text, sizeof(text))) > 0;) {
    for (long i = 0; i < n; ++i) {
      if (text[i] >= '0' && text[i] <= '9') {
        child = child * 10 + (text[i] - '0');
        continue;
      }
      if (child > 0) {
        if (level < kMostLevels) end_children_of(child, level + 1);
        sys::call(__NR_kill, child, SIGKILL);
      }
      child = 0;
    }
  }
  sys::call(__NR_close, fd);
}

}  // namespace

long take(uint32_t stopped_children, int fd) {
  if (stopped_children != 0) {
    const size_t bytes = stopped_children * sizeof(int);
    const long memory =
        sys::call(__NR_mmap, 0L, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
    if (sys::failed(memory)) return memory;
    long r = 0;
    siginfo_t told{};
    for (uint32_t count = 0; count < stopped_children && r >= 0;) {
      r = take_stop(reinterpret_cast<int*>(memory), count);
      if (r != 0) continue;
      is_told(told);
      if (has_ended(fd)) r = -EPIPE;
    }
    sys::call(__NR_munmap, memory, bytes);
    if (r < 0) return r;
  }
  drop_pending(SIGCHLD);
  return 0;
}

void end_children() { end_children_of(sys::getpid(), 0); }

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
