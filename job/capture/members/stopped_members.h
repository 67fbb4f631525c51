// Members of the job that are stopped (SIGSTOP, a terminal's stop): a helper process of the coordinator lets
// our code run in them (base/tracing/stopped_tracer.h), while everybody else sees them stopped.
//
// Owner:     the coordinator. Callers: its agent.
// Never:     a thread of the coordinator's own process traces: if it is the stopped one's parent, its wait(2)
//            would be told. The helper is a process that shares our memory and no descriptor; it ends with
//            the agent.
#pragma once

#include "base/memory/arena.h"
#include "base/tracing/tracer_orders.h"

namespace ckpt::job {

class StoppedMembers {
 public:
  explicit StoppedMembers(Arena& arena) : arena_(arena) {}
  ~StoppedMembers() { release_all(); }
  StoppedMembers(const StoppedMembers&) = delete;
  StoppedMembers& operator=(const StoppedMembers&) = delete;

  // signal: by which the member takes requests. 0, or -errno; -ECHILD: the helper is gone.
  long seize(int pid, int signal);
  // The signal that has stopped a seized member; 0: it was continued; -1: the helper is gone.
  int stop_signal(int pid);
  // The members are about to signal their threads: the helper looks more often whether something has come.
  void expect_signals();
  // When our code in the members has come to its end: they are as they were before.
  void release_all();
  // The helper was killed, as far as is known.
  bool is_gone() const { return gone_; }
  bool is_helper(int pid) const { return pid != 0 && pid == helper_; }

 private:
  struct Shared;
  long start();
  long give(TracerOrders::What what, int pid, int signal);

  Arena& arena_;
  Shared* shared_ = nullptr;
  int helper_ = 0;
  bool gone_ = false;
};

}  // namespace ckpt::job
