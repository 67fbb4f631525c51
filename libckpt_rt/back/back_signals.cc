// Going back: signals, timers, limits and settings, when memory and descriptors are as they were.
#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Drops what has become pending since the checkpoint, libc's own two among it: a thread that was told once
// more to change its user would count twice. The library's own signal stays, for an asker waits for it.
void take_all_pending(void* except) {
  const uint64_t wanted = ~*static_cast<const uint64_t*>(except);
  const timespec now{0, 0};
  siginfo_t info;
  for (uint32_t i = 0; i < 2 * PendingSignals::kMost; ++i) {
    if (sys::call(__NR_rt_sigtimedwait, &wanted, &info, &now, 8L) <= 0) return;
  }
}

void delete_timers() {
  char text[32 << 10];
  ProcessTexts texts;
  // If there are more timers than the text has room for, read it again.
  for (bool some = true; some;) {
    some = false;
    const long n = texts.read(ProcessTexts::kTimers, 0, false, text, sizeof(text));
    std::string_view rest(text, n > 0 ? static_cast<size_t>(n) : 0);
    for (size_t at; (at = rest.find("ID: ")) != rest.npos;) {
      rest.remove_prefix(at + 4);
      int id = 0;
      while (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') {
        id = id * 10 + (rest[0] - '0');
        rest.remove_prefix(1);
      }
      // A number that the buffer has cut off names another timer, or none.
      some |= sys::call(__NR_timer_delete, id) == 0;
    }
  }
  const itimerval none{};
  for (int which = 0; which < 3; ++which) sys::call(__NR_setitimer, which, &none, 0L);
}

}  // namespace

void BackRun::forget_pending() {
  uint64_t except = 1ull << (own_signal.number - 1);
  for (ParkedThreads::Thread* thread : threads_.threads())
    threads_.run_on(*thread, &take_all_pending, &except);
}

void BackRun::restore_rest() {
  for (uint32_t i = 0; i < 16; ++i) {
    const rlimit64 was{saved_process.limits.soft[i], saved_process.limits.hard[i]};
    rlimit64 now{};
    if (sys::call(__NR_prlimit64, 0L, i, 0L, &now) != 0) continue;
    if (now.rlim_cur == was.rlim_cur && now.rlim_max == was.rlim_max) continue;
    if (sys::call(__NR_prlimit64, 0L, i, &was, 0L) == 0) continue;
    // A hard limit that was lowered since stays.
    const rlimit64 part{was.rlim_cur < now.rlim_max ? was.rlim_cur : now.rlim_max, now.rlim_max};
    sys::call(__NR_prlimit64, 0L, i, &part, 0L);
  }
  delete_timers();
  forget_pending();
  const long r = restore_signal_actions(saved_process);
  if (r != 0) die("setting signal actions", r, 0);
}

// On the leader: only it may say who sent a signal, and a timer may count its time.
void BackRun::before_go(void* self) {
  auto& run = *static_cast<BackRun*>(self);
  run.cost_.notes |= restore_process_settings(saved_process);
  // In a process that ckpt-restart has made it has set these.
  sys::call(__NR_prctl, PR_SET_CHILD_SUBREAPER, long{saved_process.child_subreaper}, 0L, 0L, 0L);
  if (saved_process.thp_disable == 0 || saved_process.thp_disable == 1)
    sys::call(__NR_prctl, PR_SET_THP_DISABLE, long{saved_process.thp_disable}, 0L, 0L, 0L);
  const long r = restore_timers(saved_process.timers);
  if (r != 0) run.die("making timers again", r, 0);
  queue_again(pending_at_stop, 0);
}

// All of this process is as it was. Of a job: everywhere.
void BackRun::all_ready(void* self) {
  auto& run = *static_cast<BackRun*>(self);
  if (const auto [error, tid] = run.threads_.failure(); error != 0)
    run.die("giving a thread its rights and state", error, static_cast<uint64_t>(tid));
  // A thread that has become another user has changed it. Only these two can be set.
  const bool dumpable = saved_process.dumpable == 1;
  if (dumpable != (sys::call(__NR_prctl, PR_GET_DUMPABLE, 0L, 0L, 0L, 0L) == 1))
    sys::call(__NR_prctl, PR_SET_DUMPABLE, long{dumpable}, 0L, 0L, 0L);
  if (run.gate_.is_open()) run.come_to(kBackParts + 1, false);
}

}  // namespace ckpt
