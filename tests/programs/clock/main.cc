// clock: no clock goes backwards, and no wait until a moment ends before that moment.
#include <time.h>
#include <unistd.h>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

int64_t read_clock(clockid_t clock) {
  timespec ts;
  require_call(clock_gettime(clock, &ts) == 0, "clock_gettime");
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

std::string monotonic(uint64_t iterations) {
  constexpr clockid_t kClocks[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE,
                                   CLOCK_BOOTTIME};
  run_threads(4, [&](unsigned t) {
    int64_t last = read_clock(kClocks[t]);
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t now = read_clock(kClocks[t]);
      require(now >= last, "clock {}: went back by {} ns in step {}", kClocks[t], last - now, n);
      last = now;
    }
  });
  return fmt::format("{} looks at four clocks", 4 * iterations);
}

std::string deadlines(uint64_t iterations) {
  for (uint64_t n = 0; n < iterations; ++n) {
    int64_t deadline = read_clock(CLOCK_MONOTONIC) + static_cast<int64_t>(1 + n % 90) * 1'000'000;
    timespec until{deadline / 1'000'000'000, deadline % 1'000'000'000};
    require_zero(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr), "clock_nanosleep");
    int64_t now = read_clock(CLOCK_MONOTONIC);
    require(now >= deadline, "deadlines: woke {} ns early", deadline - now);
  }
  return fmt::format("{} deadlines", iterations);
}

}  // namespace

int main(int argc, char** argv) {
  return run_victim({"clock",
                     "Watches clocks.",
                     {{"monotonic", "clocks do not go backwards", 6'000'000, monotonic},
                      {"deadlines", "waits until a moment", 60, deadlines}}},
                    argc, argv);
}
