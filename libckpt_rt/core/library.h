// What the library knows of itself and its program: one object, constant-initialised, in the library's own
// data, so that an image holds it and a restarted process continues from it. What a higher floor owns lies
// there: what the user set (user_settings.h), threads of ours (own_threads.h), the interval's timer (interval.cc),
// the stop (stop/stop_state.h), what was captured (capture/process_state.h), what images taught
// (checkpoint/image_history.h).
//
// Owner:     libckpt_rt.
// Callers:   the preload constructor, the signal handler, the agent, the wrappers.
// Never:     copied lazily: it is written by our own threads while segments are copied, so it is saved
//            in the pause (memory_map.cc).
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt {

struct Library {
  int64_t monotonic_shift_ns = 0;   // CLOCK_MONOTONIC now minus what the program's deadlines assume
  uint64_t restart_entry = 0;       // address of the function that a restart calls
  std::atomic<bool> strict{false};  // a thread has forbidden itself system calls that a stop needs
  uint32_t foreign_filters = 0;     // seccomp filters that were there before the program's first instruction
};

extern Library library;

}  // namespace ckpt
