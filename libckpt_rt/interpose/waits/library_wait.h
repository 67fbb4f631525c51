// A wait inside a library, so that the stub cannot know where it stands. An EINTR during which some thread
// left a stop is taken to be the stop's, and the wait goes on with the time that remains. (If a handler of
// the program runs in the same call as a stop, the call may thus go on. Nowhere else is that possible.)
//
// Owner: interposition. Header only. Callers: threads of the program.
#pragma once

#include <time.h>

#include <cstdint>

#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"

namespace ckpt {

// wait(timeout) says whether it was interrupted. timeout: relative; nullptr: none.
template <typename Wait>
void wait_on(const timespec* timeout, Wait&& wait) {
  constexpr int64_t kSecond = 1'000'000'000;
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

}  // namespace ckpt
