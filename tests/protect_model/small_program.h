// A program whose memory a SmallKernel has, and the threads of ours beside it: the agent, which takes
// checkpoints, the thread that serves faults, and a few of the program's, each of which does one thing and
// ends.
//
// Owner:     tests/protect_model. Single-threaded: the threads are fibers. Instants are the calls of the
//            kernel that the agent and the serving thread make: a Step says at which of them a thread of the
//            program begins.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/protect_model/fibers.h"
#include "tests/protect_model/small_kernel.h"

namespace ckpt::test {

enum class What {
  kStore,
  kGiveBack,      // madvise: the pages go as soon as the event was read
  kGiveBackLate,  // the same, a while later
  kUnmap,
  kMapOver,
  kMoveAway,      // a bare mremap, of which nobody is told
  kMapAnother,    // at a place where nothing is mapped; what is there is written to at once
  kKernelWrites,  // a system call of the program that writes to its memory
  kPause,         // no thread begins: the one that makes the call has no processor for a while
  kLongPause,     // the same for the agent: all others go on `count` times
};

struct Step {
  size_t instant;
  What what;
  size_t page, count = 1;
};
std::string text_of(const std::vector<Step>& steps);

class SmallProgram {
 public:
  // guarded: threads handle their own faults (guard/guard.h).
  SmallProgram(SmallKernel& kernel, bool guarded, std::vector<Step> steps);
  ~SmallProgram();
  SmallProgram(const SmallProgram&) = delete;
  SmallProgram& operator=(const SmallProgram&) = delete;

  // The agent does this; returns when it and all others are done.
  void run(std::function<void()> agent);
  size_t instants() const { return instants_; }
  // By the agent. Nothing new begins, what has begun ends; then go() lets it begin again.
  void stop();
  void go() { standing_ = false; }
  // How often memory was given back, unmapped or replaced.
  size_t removals() const { return removals_; }
  // By the agent: another thread of ours, which takes no part in the stops. run() waits for its end.
  void start_writer(std::function<void()> body);
  bool writer_done() const { return writer_.done(); }
  // By the agent: a moment in which it does nothing.
  void idle() { before_call(); }

 private:
  void before_call();
  void begin(const Step& step);
  void others_go_on();
  bool all_done() const;
  // What a thread of the program does.
  void act(const Step& step);
  void store(size_t i);
  void handle_fault(size_t i);
  void announce(const Step& step);

  static constexpr size_t kThreads = 3;
  SmallKernel& kernel_;
  const bool guarded_;
  std::vector<Step> steps_;
  size_t next_ = 0, instants_ = 0, removals_ = 0;
  bool standing_ = false, pausing_ = false;
  Fiber agent_, server_, writer_, threads_[kThreads];
};

}  // namespace ckpt::test
