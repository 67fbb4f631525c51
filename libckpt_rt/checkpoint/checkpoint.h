// One checkpoint, from request to durable.
//
// Owner:     libckpt_rt. Callers: the agent, one checkpoint at a time.
//
//   stages/      what every checkpoint goes through; attempt.h names the stages in order
//   back_ends/   what differs: one class for each way to get hold of memory; choose.cc chooses
//
// Modes differ in what lies between stop and go:
//   realtime        protect, go, copy (Li, Naughton, Plank 1989, "small memory")
//   realtime-large  the same with a pool that all of memory fits in ("large memory")
//   standing        protect, copy, go: with increments only what was written since is copied
//   sequential      write all, go
//   concurrent      copy all to memory, go, write (the paper's "concurrent")
//   fork            fork, go; the child writes
#pragma once

#include "base/result.h"
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

// How the next checkpoint gets hold of memory: its mode, and where faults are handled. The settings decide,
// and what this machine allows. why_not_realtime: what keeps `auto` from realtime. why: what forbids the back
// end that is set, or nullptr.
struct CheckpointMethod {
  Mode mode;
  FaultBackEnd back_end;
  const char* why = nullptr;
  // Memory is write-protected, and copied while the program runs, or before it goes on.
  bool protects_memory() const {
    return mode == Mode::kRealtime || mode == Mode::kRealtimeLarge || mode == Mode::kStanding;
  }
};
CheckpointMethod choose_method(const Settings& settings, Error* why_not_realtime);

// The error for an image, or a job's checkpoint, that is durable and that no restart can use.
inline Error not_restartable(const char* image, const char* why) {
  return make_error(ExitCode::kNotRestartable, 0, "{} is durable, but cannot be restarted: {}", image, why);
}

// Takes one checkpoint. On failure the program runs on and the newest image is as it was.
Result<CheckpointCost> take_checkpoint();

}  // namespace ckpt
