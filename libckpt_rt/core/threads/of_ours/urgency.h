// A thread of ours for which the program's threads wait gets a processor before them.
//
// Where more threads compute than there are processors, the agent is one of many: with 100 threads on two
// processors a stop took 360 ms, with 1,000 it had no end (docs/findings.md). So the agent takes nice -20
// while it stops. While it arms, and for the thread that serves faults, it is taken only if many threads run
// for each processor: where few do, the agent would take a processor from one of them for milliseconds, which
// is longer than the pause; and threads whose faults are served at once write so much more, while memory is
// armed, that the stop is longer, and force more copies. Root may (CAP_SYS_NICE), and others up to
// RLIMIT_NICE; else nothing changes.
//
// Owner:     the thread of ours that calls begin(); it alone calls end().
// Callers:   the agent and the thread that serves faults.
// Never:     kept by the agent while it copies in order, nor taken by the writer: both work beside the
//            program.
#pragma once

#include <cstdint>

namespace ckpt {

// That this thread may use; 0: not known.
uint64_t allowed_processors();

// More than four threads, ours included, for each processor that this thread may use; and more than that many
// threads of the machine run, or would if there were a processor: those of a program may all be waiting.
bool many_threads_run();

class Urgency {
 public:
  // A process or thread that this thread makes meanwhile begins with nice 0, and the kernel's slice.
  void begin();
  // By the same thread; also by a child that it has forked, for itself. Nice and slice are as before.
  void end();
  // After a restart: the thread that began it is gone.
  void forget() { raised_ = false; }

 private:
  bool raised_ = false;
  int before_ = 0;             // nice
  uint64_t slice_before_ = 0;  // ns (Linux 6.12)
};

class ScopedUrgency {
 public:
  // is_needed false: nothing is done.
  explicit ScopedUrgency(bool is_needed = true) {
    if (is_needed) urgency_.begin();
  }
  ~ScopedUrgency() { urgency_.end(); }
  ScopedUrgency(const ScopedUrgency&) = delete;
  ScopedUrgency& operator=(const ScopedUrgency&) = delete;

 private:
  Urgency urgency_;
};

}  // namespace ckpt
