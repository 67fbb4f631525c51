// Which threads this process traces (ptrace(2)), and how: what the kernel does not say of a tracee.
//
// Owner:     the library's data, so that an image holds it.
// Callers:   the tracing thread notes its calls (interpose/process/ptrace.cc), and reads and writes its own
//            entries in our handler; the agent reads who traces.
// Never:     two threads write one entry: a tracee has one tracer, and only that thread's calls succeed.
#pragma once

#include <signal.h>
#include <sys/user.h>

#include <atomic>
#include <cstdint>
#include <span>

namespace ckpt::tracing {

struct Tracee {
  // What the calls of the tracing thread have told.
  std::atomic<int> tid{0};    // 0: free
  int tracer = 0, owner = 0;  // a thread of the process `owner`
  int resumed_by = 0;         // PTRACE_CONT and its kin; 0: never
  int resumed_before = 0;     // the one ahead of it, where the request fails
  uint32_t options = 0, options_before = 0;
  bool seized = false;
  // kOptions: until they are set. kSeized: the options, and whether it was seized; for good.
  enum class Unknown : uint8_t { kNothing, kOptions, kSeized };
  Unknown unknown = Unknown::kNothing, unknown_before = Unknown::kNothing;
  bool is_new = false;  // noted ahead of the call that attaches it
  // In a checkpoint.
  enum class State : uint32_t { kNone, kRunning, kHeld, kDelivering, kInHandler } state = State::kNone;
  enum class Stop : uint32_t { kUnknown, kSignal, kEntry, kExit } stop = Stop::kUnknown;  // of kHeld
  bool in_call =
      false;  // of kRunning: its tracer knows of the entry of a system call, and was not told of the
              // exit that a signal of ours has made
  int process = 0;
  int signal = 0;             // the number of the checkpoint's signal there
  bool was_held = false;      // it is to stop again where it was held
  bool reported = false;      // that stop was told to the program by wait(2)
  bool joined = false;        // its process was asked to take part, by a signal that this thread took
  bool stands = false;        // what it was given last is the signal that stops it for the checkpoint
  bool asked = false;         // it was sent a signal of this thread's, to take what waits for its process
  bool interrupted = false;   // the stop that PTRACE_INTERRUPT asks for came meanwhile
  int stop_came = 0;          // SIGSTOP, or the signal of a stop of its group, which came meanwhile
  bool stopped_late = false;  // SIGSTOP came while all stood: what an image has does not count
  bool attaches = false;      // at a restart: until the stop of the attach is over
  uint32_t below = 0;         // bytes that are kept of what lies below its stack (below_stack.h)
  int marker = 0;             // the signal by which it stopped at the handler's end
  siginfo_t info{};           // of the stop
  uint64_t mask = 0;          // the program's, when it was given a signal of ours
  user_regs_struct registers{};
  uint64_t debug[8] = {};
};

inline constexpr size_t kMostTracees = 64;
// Empty in a process that has never traced anybody, and whose parents have not.
std::span<Tracee> tracees();

// By the tracing thread, around a call of its own.
void note_before(long request, int tid, uint64_t data);
void note_after(long request, int tid, uint64_t data, bool done);
// By the tracing thread: one that the kernel attached by itself, and of which the program knows nothing yet.
void note_found(int tid);
// Children of its process's thread `tid`, which the kernel has attached as well.
void note_children_of(int tid);
// When the library starts: those that this process traced when it ran another program (exec).
void note_inherited();
// By a tracing thread of the program, behind a wait(2) that has told it of this stop of `tid`: is it for a
// signal of ours, or a marker? Then the tracee has gone on with it, as its tracer had let it go on, or is
// held where it was, and the program is told nothing.
bool pass_on(int tid, int signal);
// How often a thread of the program has begun to trace one.
uint32_t begun();
// More were traced than the table has places for.
bool has_overflown();

}  // namespace ckpt::tracing
