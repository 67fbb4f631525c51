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
#include "libckpt_rt/checkpoint/account/cost.h"

namespace ckpt {

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
