#include "libckpt_rt/stop/tracing/traced_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <string_view>

#include "base/clock.h"
#include "base/files/directory_scan.h"
#include "base/files/task_text.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/core/process/loading.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::traced {

namespace {

constinit std::atomic<bool> was_told{false};

constexpr std::string_view kTracerLine = "\nTracerPid:\t";

uint64_t own_bit() { return 1ull << (own_signal.number - 1); }

int free_marker() {
  uint64_t pending = 0;
  sys::call(__NR_rt_sigpending, &pending, sizeof(pending));
  for (const int signal : kMarkers) {
    KernelSigaction now{};
    const bool waits = (pending >> (signal - 1) & 1) != 0;
    if (!waits && kernel_sigaction(signal, nullptr, &now) == 0 && now.handler <= 1) return signal;
  }
  return SIGTRAP;
}

// A filter of the program's (seccomp) may forbid the call that carries a word: then the signal says less.
long queue_to_self(const siginfo_t& info) {
  const int pid = sys::getpid(), tid = static_cast<int>(sys::gettid());
  const long r = sys::call(__NR_rt_tgsigqueueinfo, pid, tid, info.si_signo, &info);
  return r == 0 || r == -EAGAIN ? r : sys::call(__NR_tgkill, pid, tid, info.si_signo);
}

// EPERM: a tracer of root's, which may still come.
bool is_gone(int tracer) { return sys::call(__NR_kill, tracer, 0L) == -ESRCH; }

}  // namespace

int own_tracer() {
  // The line is one of the first eight. Not more room than that: it may be an alternate stack (service.cc).
  char text[320];
  const long fd = sys::call(__NR_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return -1;
  const long n = sys::call(__NR_read, fd, text, sizeof(text));
  sys::call(__NR_close, fd);
  const std::string_view status(text, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t at = status.find(kTracerLine);
  return at == status.npos ? -1 : static_cast<int>(to_number(status.substr(at + kTracerLine.size()), 10));
}

void note_tracer() {
  was_told.store(true, std::memory_order_relaxed);
  are_born_untraced.fetch_add(1, std::memory_order_relaxed);
}

void forget_tracer() { are_born_untraced.fetch_sub(1, std::memory_order_relaxed); }

void reset() { are_born_untraced.store(0, std::memory_order_relaxed); }

bool has_tracer(int tid) {
  return was_told.load(std::memory_order_relaxed) &&
         ProcText(sys::getpid(), tid, "/status").number(kTracerLine, 10) != 0;
}

bool has_tracer() {
  if (!was_told.load(std::memory_order_relaxed)) return false;
  const ProcFile tasks(sys::getpid(), "/task");
  bool found = false;
  if (tasks.fd() < 0) return true;
  scan_directory(tasks.fd(), [&](std::string_view name) {
    if (found || name.empty() || name[0] < '0' || name[0] > '9') return;
    found = has_tracer(static_cast<int>(to_number(name, 10)));
  });
  return found;
}

bool take_request(siginfo_t& info) {
  const uint64_t own = own_bit();
  constexpr timespec kAtOnce{};
  if (sys::call(__NR_rt_sigtimedwait, &own, &info, &kAtOnce, sizeof(own)) != own_signal.number) return false;
  if (!stop_state.world.is_stop(info)) return true;
  // Its tracer lets it come when this handler has ended.
  queue_to_self(info);
  return false;
}

void leave_handler(int word) {
  if ((word & kAgain) == 0) return;
  // As the kernel does at the end of a tracer that was not told of a stop: the signal is delivered.
  const int untold = untold_of(word);
  const auto ends_untraced = [untold](bool may_wait) {
    if (own_tracer() != 0) return false;
    uint64_t pending = 0;
    if (may_wait) sys::call(__NR_rt_sigpending, &pending, sizeof(pending));
    if (untold != 0 && (pending >> (untold - 1) & 1) == 0)
      sys::call(__NR_tgkill, sys::getpid(), sys::gettid(), untold);
    return true;
  };
  if (ends_untraced(false)) return;
  siginfo_t info{};
  info.si_signo = free_marker();
  info.si_code = kMarkerCode;
  info.si_errno = word;
  info.si_pid = sys::getpid();
  // Of a standard signal of its own with such a code, a full queue (ulimit -i) keeps all (kernel/signal.c).
  if (const long r = queue_to_self(info); r != 0) {
    statistics::set_last_error(make_error(
        ExitCode::kUnavailable, static_cast<int>(r),
        "thread {} is traced (ptrace), and may not send itself the signal at which its tracer holds it "
        "again ({}): it goes on past the stop in which it was held",
        sys::gettid(), errno_name(static_cast<int>(r))));
    return;
  }
  const uint64_t bit = 1ull << (info.si_signo - 1);
  sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &bit, nullptr, sizeof(bit));
  // Its tracer sends it at the marker. It may have ended ahead of that; or behind it, and then the signal
  // waits. A real-time signal would come twice.
  if (untold != 0) ends_untraced(true);
}

void come_back(int word, int tracer) {
  if ((word & kServed) == 0) return;
  const uint64_t own = own_bit();
  constexpr timespec kNap{0, 1'000'000};
  constexpr size_t kMostKept = 8;
  siginfo_t kept[kMostKept];
  size_t count = 0;
  bool attached = false, cannot = false;
  for (const int64_t until = now_ns() + kPatienceNs; !attached && !cannot;) {
    siginfo_t said{};
    const bool came = sys::call(__NR_rt_sigtimedwait, &own, &said, &kNap, sizeof(own)) == own_signal.number;
    const int answer = came && said.si_code == SI_QUEUE ? said.si_errno : 0;
    attached = answer == kAttached;
    cannot = answer == kCannot;
    if (came && !attached && !cannot) {
      // A request, or a stop of this process: taken at the end. Of those that are alike one is enough.
      const bool known = std::any_of(kept, kept + count, [&said](const siginfo_t& one) {
        return said.si_code == SI_USER && one.si_code == SI_USER;
      });
      if (!known && count < kMostKept) {
        kept[count++] = said;
      } else if (!known) {
        // Its tracer's comes ahead of them: the thread's own are taken first.
        queue_to_self(said);
        sys::call(__NR_nanosleep, &kNap, nullptr);
      }
    }
    if (!attached && (now_ns() >= until || (!came && is_gone(tracer)))) break;
  }
  for (size_t i = 0; i < count; ++i) queue_to_self(kept[i]);
  if (attached) {
    loading::await_all();  // the kernel lets a tracer have no memory that is not there yet
    return leave_handler(word | kAgain);
  }
  statistics::set_last_error(make_error(
      ExitCode::kUnavailable, 0,
      "process {}, which traced this one (ptrace) when the image was taken, {}: thread {} goes on "
      "without",
      tracer, cannot ? "could not attach to it again" : "did not attach to it again", sys::gettid()));
}

}  // namespace ckpt::traced
