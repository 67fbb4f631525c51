// aio_suspend and gai_suspend: they wait inside libc, so that the stub cannot know where they stand. An
// EINTR during which some thread left a stop is taken to be the stop's, and the wait goes on with the
// time that remains. (If a handler of the program runs in the same call as a stop, the call may thus go on.
// Nowhere else is that possible.)
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/interrupted_call.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

// wait(timeout) says whether it was interrupted.
template <typename Wait>
void wait_on(const timespec* timeout, Wait&& wait) {
  timespec left = timeout != nullptr ? *timeout : timespec{};
  const bool forever = timeout == nullptr || left.tv_sec > INT32_MAX;
  const int64_t deadline =
      program_time(CLOCK_MONOTONIC) + (forever ? 0 : left.tv_sec * kSecond + left.tv_nsec);
  for (;;) {
    uint32_t departures = ckpt_departures.load(std::memory_order_relaxed);
    if (!wait(timeout != nullptr ? &left : nullptr)) return;
    if (departures == ckpt_departures.load(std::memory_order_relaxed)) return;
    if (forever) continue;
    int64_t ns = deadline - program_time(CLOCK_MONOTONIC);
    left = ns > 0 ? timespec{ns / kSecond, ns % kSecond} : timespec{};
  }
}

}  // namespace

CKPT_INTERPOSE(int, aio_suspend, const void* const* list, int n, const timespec* timeout) {
  using Real = int(const void* const*, int, const timespec*);
  Real* real = real_function(RealFunction::kAioSuspend).as<Real>();
  int r = -1;
  wait_on(timeout, [&](const timespec* left) {
    r = real(list, n, left);
    return r != 0 && errno == EINTR;
  });
  return r;
}
CKPT_INTERPOSE_ALIAS(aio_suspend, aio_suspend64);

// Returns EAI_INTR instead of setting errno.
CKPT_INTERPOSE(int, gai_suspend, const void* const* list, int n, const timespec* timeout) {
  using Real = int(const void* const*, int, const timespec*);
  constexpr int kEaiIntr = -104;
  Real* real = real_function(RealFunction::kGaiSuspend).as<Real>();
  int r = -1;
  wait_on(timeout, [&](const timespec* left) {
    r = real(list, n, left);
    return r == kEaiIntr;
  });
  return r;
}
