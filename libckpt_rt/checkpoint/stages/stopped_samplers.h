// Stopped threads of the program that work for the agent: only they share the program's descriptors.
//
// Owner:     the stop. Callers: the agent, while threads stand.
#pragma once

#include "libckpt_rt/core/threads/other_threads.h"
#include "libckpt_rt/stop/stop_world.h"

namespace ckpt {

class StoppedSamplers {
 public:
  // Valid as long as this is.
  OtherThreads threads();

 private:
  void start(void (*work)(void*), void* argument);
  void await();

  ThreadSlot* slots_[2];
  uint32_t count_ = 0;  // that were started and not awaited
};

}  // namespace ckpt
