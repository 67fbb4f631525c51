// Work that other threads do for the agent while the program's threads stand still: threads of ours on a
// processor of their own (WriterThread), or stopped threads of the program, which alone share its descriptors
// (StoppedSamplers).
//
// Owner:     the object that has the threads. Header only. Callers: the agent.
// Never:     the work makes other than raw system calls, needs more than 1 KiB of stack, or touches what the
//            agent uses between start and await.
#pragma once

namespace ckpt {

struct OtherThreads {
  void* context = nullptr;
  // Runs work(argument) on a thread that has no work yet; there must be such a thread. nullptr: there are no
  // threads.
  void (*start)(void* context, void (*work)(void*), void* argument) = nullptr;
  // Returns when all that was started is done.
  void (*await)(void* context) = nullptr;

  explicit operator bool() const { return start != nullptr; }
  void run(void (*work)(void*), void* argument) const {
    start(context, work, argument);
    await(context);
  }
};

}  // namespace ckpt
