// The guard: from before memory is protected until the copying is over, no system call of the program meets a
// protected page.
//
// The fault back ends in-thread and mprotect need it: with them the kernel cannot wait for a fault that it
// takes on the program's behalf, it fails the call, or kills the thread when it was a signal's frame.
// docs/fault_back_ends.md has the protocol and the argument why nothing is left that the kernel writes to.
//
// Owner:     libckpt_rt, one in the process. Open from the end of a stop to the next stop. A guard
//            that is open ahead of the checkpoint's stop is closed at the image's instant, and opened again
//            after it.
// Callers:   await_enlisted, prepare, *_stopped: the agent, the last while all threads stand in the handler
//            of the stop. Handler, stand_without_guard: a thread of the program in a handler of ours.
// Never:     in an image.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include "base/result.h"
#include "base/units.h"

namespace ckpt {

class Arming;
class Copier;
class GuardedMemory;
struct ThreadSlot;

namespace guard {

struct GuardRecord;

// What the memory of the program is protected with.
struct Faults {
  int signal = 0;                   // SIGBUS or SIGSEGV: raised by a write to a protected page
  int code = 0;                     // its si_code
  int descriptor = -1;              // in the program's table, while the guard is open; -1: none
  bool (*usable_here)() = nullptr;  // in a thread of the program: can it unprotect?
};

// Memory for what threads need, and code in it. Ahead of the stop. Errors say what forbids it.
Result<void> prepare();
AddrRange own_range();
// In the stop: is there anything about these threads that the guard cannot serve? nullptr, or what.
const char* refuses(const ThreadSlot* stopped);
// In a stop, before anything is protected; after it the actions of all signals are the guard's. arming:
// protection goes on while threads run, up to the next stop; nullptr: what is protected now is all.
void open_stopped(Copier& copier, const Faults& faults, Arming* arming, GuardedMemory* memory);
// In the next stop. A guard that was open ahead may be opened again in the same stop.
void close_stopped();
void reopen_stopped(Copier& copier);
// After the stop: returns when all `threads` that stood can handle faults. Until then one may still be in the
// handler of the stop, with the signal of faults blocked.
void await_enlisted(uint32_t threads);

struct Counters {
  uint64_t calls, waited,
      signals;              // system calls under the guard; waits for its end; signals of the program
  int64_t longest_wait_ns;  // of `waited`
};
Counters counters();

// Restart, forked child: it is closed.
void reset(bool memory_stays);

// First thing in the handler of a stop. If the guard is open ahead, the thread leaves it: the thread stands
// on the program's own stack, as without a guard, and this does not return.
void stand_without_guard(ucontext_t* frame);

// A handler of ours, of the checkpoint signal: from its first to its last instruction.
class Handler {
 public:
  explicit Handler(ucontext_t* frame);
  // stood: the thread was part of a stop. Returns only if the thread is not under guard when the handler
  // returns.
  void leave(bool stood);
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  ucontext_t* frame_;
  GuardRecord* record_;
  uint8_t selector_ = 0;
};

}  // namespace guard
}  // namespace ckpt
