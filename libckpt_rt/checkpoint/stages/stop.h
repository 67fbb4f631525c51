// The stop: threads, and what is looked at while they stand.
//
//   stop()  threads stand; records of threads, pending signals, timers      -> capture.threads, .pending
//   look()  mappings, process, descriptors, what the heap knows to be free  -> capture.map, .facts, ...
//   (then the back end sees to the memory: BackEnd::capture_memory)
//   go()    threads go on
//
// Owner:     one Attempt. Callers: the agent.
// Never:     anything of libc between stop() and go().
#pragma once

#include "include/ckpt_rt.h"
#include "libckpt_rt/checkpoint/account/cost.h"
#include "libckpt_rt/checkpoint/stages/process_capture.h"
#include "libckpt_rt/checkpoint/stages/stop_clock.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"
#include "libckpt_rt/stop/stop_world.h"

namespace ckpt {

class BackEnd;
class Watch;

class Stop {
 public:
  struct Parts {
    ProcessCapture& capture;
    Workspace& space;
    StopClock& clock;
    CheckpointCost& cost;
    const Settings& settings;
  };
  explicit Stop(const Parts& parts) : parts_(parts) {}
  // Threads that stand go on.
  ~Stop() { release(); }
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;

  Result<void> stop(BackEnd& back_end);
  // Nobody sends signals any more: all members of the job stand.
  Result<void> list_signals(const BackEnd& back_end);
  Result<void> look(Watch& watch);
  void go();
  // After a failure: without the program's callbacks.
  void release();
  // The threads stand: in the image's stop, not in another.
  bool stands() const { return stands_; }

 private:
  static Error program_ended();
  Result<StopWorld::Stopped> stop_threads(BackEnd& back_end);
  Result<void> list_threads(const StopWorld::Stopped& stopped);
  Result<void> look_at_descriptors(int tid, OtherThreads sharers);
  void log_stuck(int tid);
  void run_callbacks(ckpt_rt_callback_kind kind, ThreadSlot* slot);

  Parts parts_;
  bool stands_ = false;
};

}  // namespace ckpt
