// Timers of the process: setitimer(2) and timer_create(2).
//
// Time goes on while the threads stand, so a timer can expire in the stop. Its signal must then be pending in
// the image, or the timer armed: never neither, never both. The order that makes it so, all of it with the
// threads standing, after list_timers():
//   1. read_timers                    what is armed now
//   2. StopWorld::collect_pending     the signals that are pending now
//   3. read_timers                    what the image says is armed
//   4. add_expired                    a timer that expired between 1 and 3 has its signal added if 2 was too
//                                     early to find it. (What expired before 1 is pending at 2, or was
//                                     delivered before the stop.)
//
// Owner:     libckpt_rt, as part of ProcessState. Callers: the agent; the leader at restart.
// Source:    timer_create(2), /proc/PID/timers, setitimer(2), kernel/time/posix-timers.c (timer_gettime says
//            0 only when the signal is queued, or there is none).
#pragma once

#include <string_view>

#include "base/result.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt {

struct ProcessTimers {
  static constexpr uint32_t kMost = 256;

  IntervalTimersRecord interval;
  PosixTimerRecord list[kMost];
  uint32_t count;
  bool interval_unknown;  // filters refuse the question (seccomp)
};

// Which POSIX timers there are, by the text of /proc/PID/timers. Error: more than kMost of them.
Result<void> list_timers(std::string_view text, ProcessTimers& timers);
// Has the program one, where the kernel does not list them? Of those with the first numbers.
bool has_some_timer();
// What is left of each, and of the interval timers.
void read_timers(ProcessTimers& timers);

// What a timer had left at one moment, in ns.
struct TimersLeft {
  int64_t interval[3];
  int64_t list[ProcessTimers::kMost];
};
void note_left(const ProcessTimers& timers, TimersLeft& left);

// Does the signal of some timer go to the thread tid alone (SIGEV_THREAD_ID)?
bool timers_name_thread(const ProcessTimers& timers, int tid);

// Step 4 of the above; `before` is of step 1, `timers` and `pending` of steps 3 and 2. except: a signal that
// is ours.
void add_expired(const ProcessTimers& timers, const TimersLeft& before, int except, PendingSignals& pending);

// Restart, in the leader, all signals blocked. The first error, or 0.
long restore_timers(const ProcessTimers& timers);

}  // namespace ckpt
