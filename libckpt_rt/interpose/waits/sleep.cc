// Sleeping: nanosleep, clock_nanosleep, usleep, sleep, thrd_sleep.
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, nanosleep, const timespec* request, timespec* remaining) {
  CancellationPoint here;
  return to_errno<int>(calls::clock_nanosleep(CLOCK_REALTIME, 0, request, remaining));
}
CKPT_INTERPOSE_ALIAS(nanosleep, __nanosleep);

// Returns the error, leaves errno alone.
CKPT_INTERPOSE(int, clock_nanosleep, clockid_t clock, int flags, const timespec* request,
               timespec* remaining) {
  if (clock == CLOCK_THREAD_CPUTIME_ID) return EINVAL;
  CancellationPoint here;
  return static_cast<int>(-calls::clock_nanosleep(clock, flags, request, remaining));
}

CKPT_INTERPOSE(int, usleep, unsigned microseconds) {
  timespec request{microseconds / 1'000'000, long{microseconds % 1'000'000} * 1000};
  CancellationPoint here;
  return to_errno<int>(calls::clock_nanosleep(CLOCK_REALTIME, 0, &request, nullptr));
}

// Returns the whole seconds left when a handler of the program ended it.
CKPT_INTERPOSE(unsigned, sleep, unsigned seconds) {
  timespec request{seconds, 0}, remaining{};
  CancellationPoint here;
  if (to_errno(calls::clock_nanosleep(CLOCK_REALTIME, 0, &request, &remaining)) == 0) return 0;
  return static_cast<unsigned>(remaining.tv_sec);
}

CKPT_INTERPOSE(int, thrd_sleep, const timespec* request, timespec* remaining) {
  CancellationPoint here;
  long r = calls::clock_nanosleep(CLOCK_REALTIME, 0, request, remaining);
  if (r == 0) return 0;
  return r == -EINTR ? -1 : -2;
}
