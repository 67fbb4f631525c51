// Calls that wait or that let the kernel write into the program's memory.
//
// Owner: tests/programs/calls. Each function is one exercise and returns its result line.
#pragma once

#include <time.h>

#include "tests/programs/victim.h"

namespace calls {

std::string sleeps(uint64_t iterations);
std::string polls(uint64_t iterations);
std::string epolls(uint64_t iterations);
std::string timed_locks(uint64_t iterations);
std::string futexes(uint64_t iterations);
std::string pipes(uint64_t iterations);
std::string sysv(uint64_t iterations);
std::string sigwaits(uint64_t iterations);
std::string sockets(uint64_t iterations);
std::string children(uint64_t iterations);
std::string buffers(uint64_t iterations);
std::string errno_stays(uint64_t iterations);

inline int64_t to_ns(const timespec& ts) { return ts.tv_sec * int64_t{1'000'000'000} + ts.tv_nsec; }
inline timespec to_timespec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

// now on `clock` + ns, for calls that take a moment and not a duration.
inline timespec moment_after(clockid_t clock, int64_t ns) {
  timespec now;
  clock_gettime(clock, &now);
  return to_timespec(to_ns(now) + ns);
}

// Waits of 1 to 60 ms, the same in every run.
inline int64_t wait_length(uint64_t n) { return static_cast<int64_t>(1 + n * 17 % 60) * 1'000'000; }

// Runs `call` and requires that it took at least `ns`. `slack` is what the call's clock may be coarser.
template <typename F>
void takes_at_least(int64_t ns, const char* what, F&& call, int64_t slack = 0) {
  int64_t start = victim::now_ns();
  call();
  int64_t took = victim::now_ns() - start;
  victim::require(took + slack >= ns, "{}: {} ns instead of {}", what, took, ns);
}

// Runs `call`, which waits until `moment`, and requires that the moment has come.
template <typename F>
void lasts_until(clockid_t clock, const timespec& moment, const char* what, F&& call) {
  call();
  int64_t early = to_ns(moment) - to_ns(moment_after(clock, 0));
  victim::require(early <= 0, "{}: {} ns too early", what, early);
}

}  // namespace calls
