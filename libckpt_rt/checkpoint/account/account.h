// What a checkpoint has taken from the program: time on the processors of our threads, by what they do, and
// the program's waits. docs/account.md says what each figure means and what is in none of them.
//
// Owner:     CheckpointCost; the figures are of all attempts together where nothing else is said.
// Callers:   the agent.
#pragma once

#include <cstdint>

#include "libckpt_rt/core/threads/of_ours/thread_times.h"

namespace ckpt {

struct Account {
  ThreadTimes agent;     // all that is in no other thread: what the kernel knows, protection, copies in order
  ThreadTimes handler;   // serves faults, with the forced copies
  ThreadTimes writer;    // checksums, compression, requests to the disk
  ThreadTimes helpers;   // compress beside it; the emulated device
  int64_t child_ns = 0;  // of mode fork: the child that writes

  // Of the attempt that succeeded. Waits as far as they are known: from the moment in which the message could
  // be read (or, in-thread, of the fault) until the page was writable.
  uint64_t faults_ahead = 0;   // while memory was protected, nothing copied
  int64_t fault_wait_ns = 0;   // of all faults, one after the other
  int64_t buffer_wait_ns = 0;  // of forced copies for a buffer; part of it
  int64_t copier_wait_ns = 0;  // of copies in order for a buffer: for the disk

  int64_t processor_ns() const {
    return agent.ran_ns + handler.ran_ns + writer.ran_ns + helpers.ran_ns + child_ns;
  }
};

// From its construction to end(): what our threads do in between. By the agent.
class Accounting {
 public:
  // measured: false where a filter (seccomp) may forbid the system calls that measure.
  explicit Accounting(bool measured);
  // When our other threads wait or have ended; the one that serves faults between checkpoints may run.
  void end(Account& account) const;

 private:
  ThreadTimes agent_, handler_, writer_, engine_;
};

}  // namespace ckpt
