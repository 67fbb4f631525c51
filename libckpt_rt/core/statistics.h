// What became of the checkpoints of this process so far.
//
// Owner:     agent.cc, under its lock; lies in the Library, so that an image holds it.
// Callers:   agent::take_counted, agent::count_failure, agent::statistics.
#pragma once

#include <cstdint>

namespace ckpt {

struct Statistics {
  uint64_t checkpoints = 0, failures = 0;
  int64_t total_pause_ns = 0, longest_pause_ns = 0;
  char last_image[1200] = {};
  char last_error[320] = {};
};

}  // namespace ckpt
