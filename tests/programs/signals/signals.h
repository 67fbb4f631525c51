// Signals and timers: none may be lost, doubled or delivered where it is blocked.
//
// Owner: tests/programs/signals. Each function is one exercise and returns its result line.
#pragma once

#include <csignal>

#include "tests/programs/victim.h"

namespace signals {

std::string queued(uint64_t iterations);
std::string nested(uint64_t iterations);
std::string masks(uint64_t iterations);
std::string interval_timers(uint64_t iterations);
std::string posix_timers(uint64_t iterations);
std::string suspends(uint64_t iterations);
std::string pingpong(uint64_t iterations);
std::string one_shots(uint64_t iterations);
std::string handler_of_libc(uint64_t iterations);

// Unblocks or blocks one signal for the calling thread.
void set_blocked(int signal, bool blocked);
void set_handler(int signal, void (*handler)(int, siginfo_t*, void*), int flags);

}  // namespace signals
