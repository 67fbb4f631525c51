// clock_gettime, getrusage and times in a restarted process: what was used before the restart is added.
// libc's entries lead here after a restart only (libc.h), so that no call costs more before.
#include <sys/times.h>

#include "libckpt_rt/core/threads/processor_time.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long clock_gettime(clockid_t clock, timespec* time) {
  if (!processor_time::is_processor_clock(clock)) {
    // relaxed: it is set while one thread exists, and cleared by the thread that needs it.
    const auto vdso = clock_internal::vdso_clock_gettime.load(std::memory_order_relaxed);
    return vdso != nullptr ? vdso(clock, time) : sys::call(__NR_clock_gettime, long{clock}, time);
  }
  const long r = sys::call(__NR_clock_gettime, long{clock}, time);
  const int64_t more = r == 0 ? processor_time::earlier(clock) : 0;
  if (more == 0) return r;
  const int64_t ns = int64_t{time->tv_sec} * 1'000'000'000 + time->tv_nsec + more;
  *time = {ns / 1'000'000'000, ns % 1'000'000'000};
  return 0;
}

long getrusage(int who, rusage* used) {
  const long r = sys::call(__NR_getrusage, who, used);
  if (r == 0) processor_time::add_earlier(who, *used);
  return r;
}

// Rounded once: the sum of two rounded times may be a tick less than what was told before the restart.
long times(tms* used) {
  const long r = sys::call(__NR_times, used);
  if (used == nullptr || sys::failed(r) || !processor_time::came_back.load(std::memory_order_acquire))
    return r;
  constexpr int64_t kTick = 10'000;  // us: USER_HZ is 100
  auto ticks = [](const timeval& t) { return (t.tv_sec * 1'000'000 + t.tv_usec) / kTick; };
  rusage own{}, children{};
  if (calls::getrusage(RUSAGE_SELF, &own) == 0) {
    used->tms_utime = ticks(own.ru_utime);
    used->tms_stime = ticks(own.ru_stime);
  }
  if (calls::getrusage(RUSAGE_CHILDREN, &children) == 0) {
    used->tms_cutime = ticks(children.ru_utime);
    used->tms_cstime = ticks(children.ru_stime);
  }
  return r;
}

}  // namespace ckpt::calls

extern "C" {
[[gnu::visibility("hidden")]] int ckpt_clock_gettime_after_restart(clockid_t clock, timespec* time) {
  return ckpt::to_errno<int>(ckpt::calls::clock_gettime(clock, time));
}
[[gnu::visibility("hidden")]] int ckpt_getrusage_after_restart(int who, rusage* used) {
  return ckpt::to_errno<int>(ckpt::calls::getrusage(who, used));
}
[[gnu::visibility("hidden")]] clock_t ckpt_times_after_restart(tms* used) {
  return ckpt::to_errno(ckpt::calls::times(used));
}
}
