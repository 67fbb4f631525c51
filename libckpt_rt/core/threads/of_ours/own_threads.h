// The threads of ours that may exist in the program, each while there is something for it to do.
//
// Owner:     libckpt_rt: one object in its data. An image holds it; a restarted process gets new blocks,
//            which lie behind the own page (core/process/fork/own_page.h).
// Callers:   forget(): a forked child, and the leader of a restart. The agent starts and ends the threads;
//            the agent itself is started by entry/agent.cc.
#pragma once

#include <iterator>
#include <span>

#include "libckpt_rt/core/threads/of_ours/raw_thread.h"

namespace ckpt {

struct OwnThreads {
  RawThread agent, fault_handler, writer;
  RawThread engine;  // CKPT_ENGINE=dma only

  // None of them exists in this process.
  void forget();
};

extern OwnThreads own_threads;

inline RawThread* const kOwnThreads[] = {&own_threads.agent, &own_threads.fault_handler, &own_threads.writer,
                                         &own_threads.engine};

// The threads that a stop does not stop: the caller, and the others that run. A thread that has ended keeps
// its number until it is started again, and is not among them.
class RunningOwnThreads {
 public:
  RunningOwnThreads() {
    add(sys::gettid());
    for (const RawThread* t : kOwnThreads) {
      if (t->running() && t->tid() != ids_[0]) add(t->tid());
    }
  }
  // more: of threads that compress, CompressionThreads::hold().
  void add(int tid) { ids_[count_++] = tid; }
  std::span<const int> ids() const { return std::span(ids_).first(count_); }

 private:
  int ids_[1 + std::size(kOwnThreads) + 3] = {};
  size_t count_ = 0;
};

}  // namespace ckpt
