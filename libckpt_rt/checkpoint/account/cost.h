// What one checkpoint was, and what it cost: for `ckpt now`, `ckpt stat` and the image itself.
//
// Owner:     one attempt. Callers: the agent, and the child that writes in mode fork.
#pragma once

#include <cstdint>

#include "base/settings/settings.h"
#include "libckpt_rt/checkpoint/account/account.h"

namespace ckpt {

struct CheckpointCost {
  Mode mode = Mode::kAuto;
  uint64_t sequence = 0;
  uint64_t parent_sequence = 0;  // of the image that it is an increment to; 0: full
  int64_t pause_ns = 0;          // from the first computing thread standing to the last released
  int64_t resumed_ns = 0;        // CLOCK_MONOTONIC: when they were
  int64_t longest_wait_ns = 0;   // upper bound of the longest wait of a thread on a protected page
  uint64_t forced_copies = 0, sequential_copies = 0, release_copies = 0, faults = 0;
  uint64_t bytes_memory = 0, bytes_written = 0;
  uint64_t image_state = 0;  // ParentImage::state
  int64_t durable_ns = 0;    // from the request until the rename was synced
  uint32_t threads = 0, mappings = 0, descriptors = 0, attempts = 0;
  // Why no restart of the image can be: the first of its notes that says so. Empty: none does.
  char why_not_restartable[320] = {};
  uint32_t pool_waits_forced = 0, pool_waits_sequential = 0;
  Account account;
  char image[1400] = {};  // absolute path

  bool restartable() const { return why_not_restartable[0] == '\0'; }
};

}  // namespace ckpt
