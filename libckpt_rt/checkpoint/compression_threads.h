// The threads that compress beside the writer thread, while an image is written.
//
// Owner:     PendingImage, on the agent's stack: the kernel writes to a thread's word when it ends, and that
//            memory is never protected.
// Callers:   start() by the thread that writes (writer, agent, or a forked child), after the stop; join() by
//            the agent. They are gone before the agent is: a stop, fork() or unshare() of the program never
//            meets them.
#pragma once

#include "image/write/compress/helper_threads.h"
#include "libckpt_rt/core/threads/raw_thread.h"

namespace ckpt {

class CompressionThreads final : public HelperThreads {
 public:
  // The processors that we may use, less the writer's, and few: the program wants them too.
  uint32_t most() const override;
  bool start(void (*fn)(void*), void* arg) override;
  void join() override;
  // Of those that were joined.
  ThreadTimes times() const { return times_; }

 private:
  static constexpr uint32_t kMost = 3;
  RawThread threads_[kMost];
  uint32_t count_ = 0;
  ThreadTimes times_;
};

}  // namespace ckpt
