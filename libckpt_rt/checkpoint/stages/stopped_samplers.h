// Stopped threads of the program that work for the agent: only they share the program's descriptors. The
// first of them also does `rest` when it has sampled, unless the agent comes to it earlier, or the thread is
// under filters of system calls.
//
// Owner:     the stop. Callers: the agent, while threads stand.
// Never:     rest asks what differs from thread to thread, uses a descriptor, or maps memory: the agent reads
//            the list of mappings meanwhile.
#pragma once

#include <atomic>

#include "libckpt_rt/core/threads/of_ours/other_threads.h"
#include "libckpt_rt/stop/stop_world.h"

namespace ckpt {

class StoppedSamplers {
 public:
  StoppedSamplers() = default;  // there is no rest
  StoppedSamplers(void (*rest)(void*), void* argument) : rest_{rest, argument}, rest_claimed_(false) {}
  // Valid as long as this is.
  OtherThreads threads();
  // The rest is begun when this returns, and done when the threads are awaited after that.
  void begin_rest() {
    // relaxed: who claims it knows what it needs, and await() publishes what it has found.
    if (!rest_claimed_.exchange(true, std::memory_order_relaxed)) rest_.work(rest_.argument);
  }

 private:
  struct Work {
    void (*work)(void*) = nullptr;
    void* argument = nullptr;
  };
  static void sample_and_begin_rest(void* self);
  void start(void (*work)(void*), void* argument);
  void await();

  ThreadSlot* slots_[2];
  uint32_t count_ = 0;  // that were started and not awaited
  Work first_, rest_;   // first_: of the first thread
  std::atomic<bool> rest_claimed_{true};
};

}  // namespace ckpt
