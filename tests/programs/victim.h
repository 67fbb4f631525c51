// The frame of a victim: a program that is checkpointed, killed and brought back by the tests and
// knows nothing of it. A victim runs named exercises side by side; each checks its invariants all
// the time and returns one line that depends on the amount of work alone.
//
// Owner:     tests/programs.
// Callers:   main() of each victim; exercises run on threads of their own.
// Never:     reads the environment, looks for the preloaded library, or prints anything that depends
//            on time. An invariant that breaks ends the program at once with exit code 1.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace victim {

struct Exercise {
  const char* name;
  const char* description;
  uint64_t iterations;  // at --work 100
  std::function<std::string(uint64_t iterations)> run;
  // false: uses what a restart does not bring back (sockets and the like). Such exercises run where
  // the program is checkpointed but not killed.
  bool restartable = true;
};

struct Victim {
  const char* name;
  const char* description;
  std::vector<Exercise> exercises;
};

// --only NAMES, --work PERCENT, --restartable, --list. Exit codes: 0 all invariants held, 1 one
// broke, 64 wrong arguments.
int run_victim(const Victim& victim, int argc, char** argv);

// Prints "BROKEN: <text>" to standard error and ends the program with exit code 1.
[[noreturn]] void broken(const std::string& text);

template <typename... T>
void require(bool holds, fmt::format_string<T...> format, T&&... args) {
  if (!holds) [[unlikely]]
    broken(fmt::format(format, std::forward<T>(args)...));
}

// require() for a system call's or a libc function's result; adds errno's text.
void require_call(bool worked, const char* what);
// For pthread functions, which return the error.
void require_zero(int error, const char* what);

inline constexpr uint64_t kPage = 4096;

// Private anonymous memory, zeroed.
std::byte* map_pages(uint64_t pages);

// SplitMix64 as a bijection and as a sequence.
inline constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  uint64_t below(uint64_t limit) { return next() % limit; }

 private:
  uint64_t state_;
};

// An atomic 64-bit word in memory that was mapped raw.
inline std::atomic<uint64_t>& word_at(std::byte* p) { return *reinterpret_cast<std::atomic<uint64_t>*>(p); }

// Meets `count` threads without a futex: waits in a yielding loop.
class SpinBarrier {
 public:
  explicit SpinBarrier(unsigned count) : count_(count) {}
  void wait() {
    unsigned round = round_.load(std::memory_order_acquire);
    // acq_rel: what every thread wrote before the barrier is seen by all behind it.
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    while (round_.load(std::memory_order_acquire) == round) std::this_thread::yield();
  }

 private:
  const unsigned count_;
  std::atomic<unsigned> arrived_{0};
  std::atomic<unsigned> round_{0};
};

// Calls work(0) … work(threads - 1), each on its own thread, and waits for all.
void run_threads(unsigned threads, const std::function<void(unsigned)>& work);

// CLOCK_MONOTONIC, nanoseconds.
int64_t now_ns();

}  // namespace victim
