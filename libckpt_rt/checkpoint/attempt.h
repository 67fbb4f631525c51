// One attempt at a checkpoint: its parts, which the stages hand on to each other, and the stages in order.
//
//   prepare   the program runs: memory for lists, name and file of the image, mappings, descriptors,
//             threads of ours; what the back end does ahead of the stop
//   stop      threads stand; what the kernel knows of the process        (stages/stop.h)
//   memory    the back end protects or copies memory                     (back_end.h)
//   finish    threads go on; the rest is copied, written and committed   (the back end)
//
// Owner:     take_checkpoint(), on the agent's stack. Callers: the agent.
#pragma once

#include "base/checks/check.h"
#include "job/format/wire.h"
#include "libckpt_rt/checkpoint/checkpoint.h"
#include "libckpt_rt/checkpoint/in_force.h"
#include "libckpt_rt/checkpoint/stages/files/file_saver.h"
#include "libckpt_rt/checkpoint/stages/memory/eager_copies.h"
#include "libckpt_rt/checkpoint/stages/pending_image.h"
#include "libckpt_rt/checkpoint/stages/process_capture.h"
#include "libckpt_rt/checkpoint/stages/stop.h"
#include "libckpt_rt/checkpoint/stages/stop_clock.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"
#include "libckpt_rt/protect/watch.h"

namespace ckpt {

class BackEnd;

// What take_checkpoint() has to know of an attempt besides its result.
struct Outcome {
  // The attempt failed because the program gave memory back under our hands, or a check failed: another may
  // succeed.
  bool spoiled = false;
  // The attempt failed because its fault back end cannot serve this program: nothing happened to it.
  bool refused = false;
  // The watch goes on: the next checkpoint may be an increment to this one. Otherwise it has to be ended.
  bool keeps_watch = false;
};

struct Attempt {
  Attempt(int64_t requested, const Settings& of_user, CheckpointCost& image_cost, Watch& its_watch)
      : requested_ns(requested), settings(of_user), cost(image_cost), watch(its_watch) {}
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // The threads go on: what was held for the stop is given back beside them.
  void after_stop();
  // What every back end needs at the end: the META section is written, the image made durable.
  Result<void> describe();
  Result<void> commit();
  // The last step of preparing: what the stop needs and the program can run beside.
  Result<void> get_ready(const OtherThreads& others);

  const int64_t requested_ns;
  const Settings& settings;  // back ends and stages are handed these, and fetch none
  int64_t copied_ns = 0;
  CheckpointCost& cost;
  Watch& watch;
  Outcome outcome;
  InForce in_force;

  Workspace space;  // first: the others have memory of its arena
  PendingImage image{settings};
  ProcessCapture capture{space.arena()};
  EagerCopies eager;
  FileSaver file_saver;
  check::ScopedChecks checks;
  StopClock clock;
  Stop stop{{capture, space, clock, cost, settings}};
};

// Runs all stages with this back end. When it returns, threads run, and nothing of them is protected unless
// the watch is kept.
Result<void> run_stages(Attempt& attempt, BackEnd& back_end);

// What a member of a job tells of its image.
job::Written to_written_message(const CheckpointCost& cost);

}  // namespace ckpt
