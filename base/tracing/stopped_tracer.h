// Runs our code, and nothing else, in a process that is stopped (SIGSTOP, a terminal's stop).
//
// Owner:     whoever makes it, in one thread: ptrace(2) knows its tracer by thread. All is called by that
//            thread. It must be of another process than the stopped one's parent: wait(2) of a parent that
//            traces tells it of each step.
// Callers:   the helper of a job's coordinator (job/capture/members/stopped_members.h), `ckpt now` of a
//            stopped process.
// Never:     libc, malloc. No instruction of the program's own is executed, but for what the dynamic linker
//            runs before our library where the process was stopped there.
//
// PTRACE_SEIZE makes a stopped thread a traced one, without a word to the parent: the process stays stopped
// to everybody (wait(2), its threads to come), but a traced thread runs when its tracer lets it. So
//
//   thread            state        it runs                                     until
//   the program's     kHeld        never                                       a signal of ours is pending for it
//                     kDelivering  no further than to that signal: all others  it is about to be delivered
//                                  are blocked meanwhile
//                     kInOurCode   our handler, one system call after another  the return from it has opened our
//                                                                              signal again: held
//   ours              kOurs        freely
//   the only one      kStarting    the dynamic linker, one system call after     our handler is there, and our signal
//                                  another, with all signals blocked             open: held. At the latest at the
//                                                                                program's entry
//
// Threads that are made meanwhile are ours, for the program makes none. When the tracer ends, however it
// ends, the kernel stops all of them again where they are. SIGCONT from anybody continues the process as
// ever; its threads are let go at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

class StoppedTracer {
 public:
  // memory: kBytes, zeroed; it stays the caller's.
  static constexpr size_t kBytes = 4 << 20;
  explicit StoppedTracer(void* memory);
  StoppedTracer(const StoppedTracer&) = delete;
  StoppedTracer& operator=(const StoppedTracer&) = delete;

  // All threads of the process. signal: by which it takes requests and stops. 0, or -errno: -EPERM may not be
  // traced, -ESRCH is gone, -EAGAIN does not stand, -ENOMEM.
  long seize(int pid, int signal);
  // Handles what has happened; waits at most so long for something.
  void serve(int64_t wait_ns);
  // The signal that has stopped it; 0: it was continued, or is gone. Exact at some moment of the call, as
  // long as a thread of ours is in it.
  int stop_signal(int pid);
  // In all of them: the program's threads are held, and those of ours have gone, or wait.
  bool is_quiet();
  // Lets all threads go that are held, and waits until they have stopped, a second at most. The others stop
  // when the tracer ends.
  void release_all();
  void expect_signals() { idle_rounds_ = 0; }
  // Was there something to do lately?
  bool is_busy() const { return idle_rounds_ < kRestless; }

 private:
  enum class State : uint32_t { kSeizing, kHeld, kDelivering, kInOurCode, kOurs, kStarting };
  struct Thread {
    int tid;
    int process;  // index of processes_
    State state;
    bool masked;         // its own mask is in `mask`
    uint64_t mask;       // of kDelivering and kStarting
    uint64_t slept = 0;  // of kOurs: how often it had gone to sleep at the last look
  };
  struct Process {
    int pid, signal;
    int stop_signal;  // 0: it was continued
    uint64_t library_start, library_end;
  };
  static constexpr uint32_t kRestless = 50;

  void take_events();
  void on_event(int tid, int status);
  void on_stop(Thread& t, int status);
  void on_group_stop(Thread& t, int signal);
  void on_system_call(Thread& t);
  void let_start(Thread& t);
  void hold_started(Thread& t);
  bool is_at_entry(const Thread& t) const;
  bool is_in_linker(const Thread& t) const;
  void on_signal(Thread& t, int signal);
  void look_for_signals();
  void release_thread(Thread& t, int signal);
  void interrupt_masked();
  void continued(int process);
  long seize_listed(int process, bool& any);
  bool add(const Thread& thread);
  void add_born(int tid, int status);
  void remove(int tid);
  Thread* find(int tid);
  std::span<Thread> threads() const { return {threads_, thread_count_}; }
  void unmask(Thread& t);

  static constexpr size_t kMostProcesses = 4096;
  static constexpr size_t kMostThreads = (kBytes - kMostProcesses * sizeof(Process)) / sizeof(Thread);
  Process* const processes_;
  Thread* const threads_;
  int process_count_ = 0;
  size_t thread_count_ = 0;
  uint32_t idle_rounds_ = 0;
  bool ends_ = false;
};

}  // namespace ckpt
