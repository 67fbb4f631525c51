// The threads that compress beside the writer thread, while an image is written.
//
// Owner:     PendingImage, on the agent's stack: the kernel writes to a thread's word when it ends, and that
//            memory is never protected.
// Callers:   start() by the thread that writes (writer, agent, or a forked child), after the image's stop;
//            hold(), let_start() and join() by the agent. They are gone before the agent is: no fork() or
//            unshare() of the program meets them, and no stop but the one that ends the guard, which holds
//            them.
#pragma once

#include <span>

#include "base/locks/futex.h"
#include "image/write/compress/helper_threads.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"

namespace ckpt {

class CompressionThreads final : public HelperThreads {
 public:
  // The processors that we may use, less the writer's, and few: the program wants them too.
  uint32_t most() const override;
  bool start(void (*fn)(void*), void* arg) override;
  void join() override;
  static constexpr uint32_t kMost = 3;
  // For a stop that counts the threads of the process: none is started until let_start(). The ids of those
  // that there are, for as long; `ids` has room for kMost.
  std::span<const int> hold(std::span<int> ids);
  void let_start() { lock_.unlock(); }
  // Of those that were joined.
  ThreadTimes times() const { return times_; }

 private:
  RawThread threads_[kMost];
  FutexLock<LockRank::kCompressionThreads> lock_;  // count_, against the agent
  uint32_t count_ = 0;
  ThreadTimes times_;
};

}  // namespace ckpt
