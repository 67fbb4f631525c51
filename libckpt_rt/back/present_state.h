// The part of the library's data that belongs to this machine and this moment, not to the program.
// `ckpt back` puts back the library's data of the checkpoint; PresentState keeps this part as it is.
//
// Owner:     BackRun, in its arena. Callers: the agent, while the program's threads are parked and it serves
//            the faults of a watch itself: no other thread uses the library's data then.
// Rule:      all that restart_entry.cc resets is saved here, or reset here too.
#pragma once

#include "libckpt_rt/checkpoint/image/image_history.h"
#include "libckpt_rt/checkpoint/in_force.h"
#include "libckpt_rt/checkpoint/requests.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/protect/watch.h"

namespace ckpt {

class PresentState {
 public:
  void save();
  // The library's data is as at the checkpoint: puts in what save() has saved. Resets the stop, the gate and
  // all else that is over for the threads that will go on. watch: stays between checkpoints; nullptr: none.
  void put_back(Watch* watch);

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
