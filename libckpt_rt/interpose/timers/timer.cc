// timer_create with CLOCK_THREAD_CPUTIME_ID: the kernel does not say later which thread's time the timer
// counts, and at a restart one thread makes all timers. So the timer is created with a clock that names the
// thread.
#include <signal.h>
#include <time.h>

#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

// As pthread_getcpuclockid() makes it: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED of the kernel's
// posix-timers.
clockid_t processor_time_of(int tid) {
  constexpr int kOfThread = 4, kScheduled = 2;
  return static_cast<clockid_t>(~static_cast<unsigned>(tid) << 3 | kOfThread | kScheduled);
}

}  // namespace

CKPT_INTERPOSE(int, timer_create, clockid_t clock, sigevent* event, timer_t* timer) {
  using Create = int(clockid_t, sigevent*, timer_t*);
  const bool signals =
      event != nullptr && (event->sigev_notify == SIGEV_SIGNAL || event->sigev_notify == SIGEV_THREAD_ID);
  if (signals && is_checkpoint_signal(event->sigev_signo)) hooks::yield_signal();
  if (clock == CLOCK_THREAD_CPUTIME_ID) clock = processor_time_of(sys::gettid());
  return real_function(RealFunction::kTimerCreate).as<Create>()(clock, event, timer);
}
