// Threads that catch system calls themselves (PR_SET_SYSCALL_USER_DISPATCH), as Wine's do. The kernel tells
// nobody but a tracer which they are. While the byte that such a thread named, its selector, says "block",
// each system call but of one range ends in SIGSYS: also those of our handler, whose signals are blocked, so
// that the kernel would end the process.
//
// Owner:     libckpt_rt, in its own data, so that an image has it: kMost threads in the life of the process.
//            Of more a note is made.
// Callers:   before_call, after_call: the thread that calls prctl(2). Pause: our handlers, in such a thread,
//            before anything else. set_again, return_into: the thread's successor at a restart.
// Never:     makes a system call in a Pause's constructor. A thread that has moved its thread pointer, or has
//            called prctl(2) past libc, is not known.
//
// How a handler runs in such a thread
//   enter      The selector says "block": the handler writes "allow", by a store, and notes it (blocked).
//   stand      The image has the thread as blocked, with its own registers.
//   leave      rt_sigreturn(2) must be allowed as well. So the frame's instruction pointer is led to six
//              instructions (own_dispatch.S) that write "block" and jump to where the thread was: no stack, no
//              flags, all registers as they were.
//   once more  A signal of ours may find the thread in these. It then counts as blocked, where it was to be:
//   the
//              frame is put right before anything looks at it.
// A handler of the program that interrupts these sees their address, and "allow" for a moment longer: as one
// does whose signal waited meanwhile. A stop in that handler takes another way back: each thread has
// kWaysBack.
#pragma once

#include <ucontext.h>

#include <cstdint>

namespace ckpt::own_dispatch {

inline constexpr uint32_t kMost = 64, kWaysBack = 4;

struct Call {  // arguments of prctl(2); mode 0: off
  long mode = 0, offset = 0, length = 0, selector = 0;
};
struct Note {
  uint32_t place = 0;  // + 1; 0: nothing was noted
  Call before;
};
// Noted ahead of the call, for a stop may come right behind it. A call without a selector gets one of ours
// that always says "block", which is the same.
Note before_call(int tid, Call& call);
void after_call(const Note& note, const Call& call, bool succeeded);
// By the agent, before it stops any thread: do two threads have the same selector? The thread that returns
// first would block the other's handler.
bool share_a_selector();
// Some thread is not known, for want of room.
bool is_full();

class Pause {
 public:
  explicit Pause(ucontext_t* frame);
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  ucontext_t* frame_;
};

// Some thread has ever caught calls.
bool is_used();
// In a Pause, of a thread whose memory is about to be replaced (ckpt back): it catches none until
// set_again().
void give_up();
// The calling thread catches system calls again; from then on its selector allows them, as it did when it
// stood. 0, or the error.
long set_again();
// A selector that blocked system calls blocks them again when the thread has returned from this frame.
void return_into(ucontext_t* frame);

}  // namespace ckpt::own_dispatch
