// A stop without a checkpoint: the signal, a pause in its handler, fix_interrupted_call.
//
// Owner: tests/interpose. Callers: test threads.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace ckpt::test {

// Installs the handler of the stop signal. pause_ns: how long a stopped thread stands.
void install_stop_handler(int64_t pause_ns);

// Stops one thread, at some moment soon.
void send_stop(pid_t tid);

pid_t this_thread();

// Threads that went through the handler.
uint64_t stops();

// Sends stops to all other threads at random moments from construction to destruction.
class Storm {
 public:
  explicit Storm(int64_t mean_gap_ns);
  ~Storm();

 private:
  struct State;
  State* state_;
};

// Sends the process signals that nobody handles, without rest, from construction to destruction.
class IgnoredSignals {
 public:
  IgnoredSignals();
  ~IgnoredSignals();

 private:
  struct State;
  State* state_;
};

// What the hooks saw.
struct Release {
  uintptr_t start;
  size_t length;
};
inline constexpr int kMaxReleases = 4096;
void set_copying(bool on);
void set_registered(bool on);  // as if memory of the program were registered for the events of a userfaultfd
int releases();                // since set_copying(true), at most kMaxReleases
Release release(int i);
bool was_released(uintptr_t start, size_t length);
inline bool was_released(const void* start, size_t length) {
  return was_released(reinterpret_cast<uintptr_t>(start), length);
}
int forks_in_child();
int forks_begun();
int forks_made();      // seen in the parent
int spawns();          // announced
int ends_announced();  // announced: of this process
void set_monotonic_shift(int64_t ns);
// Called in the handler, between the pause and fix_interrupted_call; may be null.
extern std::atomic<void (*)()> in_pause;

}  // namespace ckpt::test
