// What of the library's data is of this machine and this moment, and not of the program: it stays what it is
// when the memory of a checkpoint is put back under us.
//
// Owner:     BackRun, in its arena. Callers: the agent, the program's threads parked, while it serves the
//            faults of the watch, if there is one: nobody else uses the library's data then.
// Rule:      whatever restart_entry.cc resets is here, or is reset here as there.
#pragma once

#include "libckpt_rt/checkpoint/image_history.h"
#include "libckpt_rt/checkpoint/in_force.h"
#include "libckpt_rt/core/process/own_page.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/threads/own_threads.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/protect/watch.h"

namespace ckpt {

class KeptState {
 public:
  void keep();
  // The library's data is as at the checkpoint: our part of it is put in again, and the stop, the gate and
  // whatever else is over for the threads that will go on is reset. watch: stays kept, or nullptr.
  void put_in(Watch* watch);

 private:
  RawThread threads_[4];
  own_page::Place own_page_;
  Statistics statistics_;
  CompressionKnowledge compression_;
  in_force::Known in_force_;
  agent::WaitingRequests agent_;
  AddrRange guard_, job_sign_;
  uint32_t generation_, memory_registered_;
  int64_t monotonic_shift_ns_;
  uint64_t last_streamed_;
  bool has_forked_;
};

}  // namespace ckpt
