// Threads of a model that take turns: each goes on when it is told to, until it suspends itself. So the order
// of events is the test's, and the code that runs on them may be the library's own.
//
// Owner:     tests/protect_model. Single-threaded.
#pragma once

#include <setjmp.h>

#include <functional>

#include "base/units.h"

namespace ckpt::test {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The stack must stay until it is done().
  void begin(AddrRange stack, std::function<void()> body);
  bool done() const { return done_; }
  // Goes on until it suspends itself or is done. Not for one that is going on already.
  void resume();
  // Suspended, and not done: resume() may be called.
  bool can_go_on() const { return !done_ && !active_; }

  // The one that calls; nullptr outside of all.
  static Fiber* current();
  // Goes back to the caller of resume().
  static void suspend();

 private:
  static void entry(unsigned low, unsigned high);

  // Not swapcontext(3), which asks the kernel for the signal mask each time.
  jmp_buf own_, caller_;
  AddrRange stack_{};
  bool begun_ = false;
  std::function<void()> body_;
  bool done_ = true, active_ = false;
  Fiber* before_ = nullptr;
};

}  // namespace ckpt::test
