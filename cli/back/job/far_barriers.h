// The barriers of a job that goes back, over several hosts: this process is one more member of this host's
// gate, and comes to a barrier when all processes of all hosts have (base/protocol/back_gate.h).
//
// Owner: cli, job_back.cc. A thread of its own from the commit on, which ends before this does. Callers:
// JobBack.
#pragma once

#include <optional>
#include <thread>

#include "cli/back/job/job_gate.h"
#include "cli/back/job/other_hosts.h"

namespace ckpt::cli {

class FarBarriers {
 public:
  FarBarriers(OtherHosts& others, JobGate& gate) : others_(others), gate_(gate) {}
  ~FarBarriers() { end(); }
  FarBarriers(const FarBarriers&) = delete;
  FarBarriers& operator=(const FarBarriers&) = delete;

  // member: the number of this process in the gate; those of the processes are below.
  Result<void> take_part(uint32_t member);
  void begin();
  // Waits for the last barrier, or for a failure.
  void end();
  // After end(): why no barrier was come to any more, if it is not a process here that failed.
  const std::optional<Error>& error() const { return error_; }

 private:
  void run();
  Result<void> come_to(uint32_t barrier);
  bool others_here_at(uint32_t barrier) const;

  OtherHosts& others_;
  JobGate& gate_;
  uint32_t member_ = 0;
  ScopedFd lock_;  // as long as it is held this member lives
  std::thread thread_;
  std::optional<Error> error_;
};

}  // namespace ckpt::cli
