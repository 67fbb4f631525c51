// The writer thread: hands what was copied to the sink, in the order in which it comes out of the queue.
//
// It exists from before the stop: a failure to start it must not leave threads in faults with nobody to empty
// the pool. Until the copying begins it can help in the stop, on another processor than the agent's.
//
//   spawn() -> [waits] -- helper().start --> [helps] -- done --> [waits]
//              [waits] -- write() --> [writes until the queue is closed] -> gone
//              [waits] -- end() --> gone
//
// Owner:     one back end that protects memory. Callers: the agent. run() is the thread itself.
#pragma once

#include "base/locks/futex.h"
#include "copier/buffer_pool.h"
#include "copier/filled_queue.h"
#include "image/write/image_sink.h"
#include "libckpt_rt/checkpoint/stages/memory/eager_copies.h"
#include "libckpt_rt/core/threads/of_ours/other_threads.h"

namespace ckpt {

class WriterThread {
 public:
  // What it writes comes from here.
  struct Source {
    EagerCopies& eager;
    FilledQueue& queue;
    BufferPool& pool;
    ImageSink& sink;
  };
  explicit WriterThread(const Source& source) : source_(source) {}

  Result<void> spawn();
  // Until write() the thread works for the agent, if it has a processor of its own; else OtherThreads is
  // empty.
  OtherThreads helper();
  // The queue may be filled from now on; the eager copies are complete.
  void write();
  bool writes() const { return ordered_; }
  // If it does not write it ends. Else it ends when the queue is closed and empty: waits for that.
  void end();
  // After end().
  const Result<void>& result() const { return result_; }

 private:
  enum class Order : uint32_t { kWait = 0, kWrite = 1, kLeave = 2, kHelp = 3, kHelping = 4 };
  void give(Order order);
  bool await_order();
  void run();
  void start_help(void (*work)(void*), void* argument);
  void await_help();

  Source source_;
  Result<void> result_;
  FutexWord order_{static_cast<uint32_t>(Order::kWait)};
  bool ordered_ = false;
  bool spawned_ = false;
  uint8_t processors_[1024] = {};  // the mask of those it may run on
  uint32_t processors_bytes_ = 0;
  void (*work_)(void*) = nullptr;
  void* work_argument_ = nullptr;
};

}  // namespace ckpt
