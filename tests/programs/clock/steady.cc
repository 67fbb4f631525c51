// steady: CLOCK_MONOTONIC and CLOCK_BOOTTIME do not jump forward either. For a restart that continues
// the clocks; the time for which the program did not exist must not be seen.
#include <time.h>
#include <unistd.h>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

// ns; less than programs.py keeps it away. The host of a busy machine may keep a thread waiting for seconds.
constexpr int64_t kLargestStep = 8'000'000'000;

std::string steady(clockid_t clock, uint64_t iterations) {
  timespec ts;
  int64_t last = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    require_call(clock_gettime(clock, &ts) == 0, "clock_gettime");
    int64_t now = int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
    require(last == 0 || (now >= last && now - last < kLargestStep), "steady: clock {} jumped by {} ns",
            clock, now - last);
    last = now;
    usleep(1000);
  }
  return fmt::format("{} steps", iterations);
}

}  // namespace

int main(int argc, char** argv) {
  return run_victim(
      {"steady",
       "Watches clocks for jumps.",
       {{"monotonic", "CLOCK_MONOTONIC", 2000, [](uint64_t n) { return steady(CLOCK_MONOTONIC, n); }},
        {"boottime", "CLOCK_BOOTTIME", 2000, [](uint64_t n) { return steady(CLOCK_BOOTTIME, n); }}}},
      argc, argv);
}
