// The sign of life of a host's agent, in memory that the agent shares with its warden and its guard.
//
// Owner: cli, the agent, whose thread of beats writes it. Callers: the guard and the warden.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace ckpt::cli {

struct AgentBeats {
  std::atomic<int64_t> last_ns;  // of beat_clock_ns()
  std::atomic<bool> over;        // the agent ends in order
};

// Beats within one patience.
constexpr int kBeatsAPatience = 16;

// Counts the time for which the machine was suspended, too: the job has gone on elsewhere meanwhile.
inline int64_t beat_clock_ns() { return now_ns(CLOCK_BOOTTIME); }

}  // namespace ckpt::cli
