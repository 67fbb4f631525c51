// One host's part in a checkpoint over several hosts: pure states between the head and the processes of this
// host, whose coordinator (job/capture/coordinator/coordinator.h) waits at each step for kContinue.
//
// Owner:     cluster. Callers: the host agent's loop, one thread; the explorer in the tests.
// Why no host is left standing: a timer runs whenever this host waits for the head. The timer, or the end of
// the connection, lets the processes go on.
// Why no part of a checkpoint that counts is taken away: once this host has said kDurable, only the head's
// kAbort removes its part.
#pragma once

#include "cluster/protocol/steps.h"

namespace ckpt::cluster {

struct AgentAction {
  enum class Kind : uint8_t {
    kBegin,     // ask the processes of this host for a checkpoint: they come to `step` or fail
    kContinue,  // the processes may go on to the step after `step`
    kGiveUp,    // the processes go on, and their part is removed
    kKeepPart,  // the processes go on, and their part stays: the head may have decided that it counts
    kReached,   // tell the head that this host has come to `step`
    kFailed,    // tell the head that this host gives up after `step`
    kSetTimer,  // for the head's next order
    kStopTimer,
  } kind;
  Step step = Step::kNone;
  uint64_t id = 0;
};

class AgentMachine {
 public:
  using Actions = std::vector<AgentAction>;

  enum class Phase : uint8_t {
    kIdle,
    kWorking,  // the processes are on their way to the step after reached()
    kWaiting,  // the processes have come to reached(), and wait for the head's order
    kEnding,   // the processes were told how the checkpoint ends, and have not answered yet
  };

  void ordered(uint64_t id, Order order, Actions& out);
  // The processes have come to `step`.
  void came_to(Step step, Actions& out);
  // The processes' checkpoint is over, however it ended: none of them waits any more.
  void ended(Actions& out);
  void timed_out(Actions& out);
  void lost_head(Actions& out);

  Phase phase() const { return phase_; }
  Step reached() const { return reached_; }
  uint64_t id() const { return id_; }
  uint64_t next() const { return next_; }

 private:
  void release_processes(bool tell_head, Actions& out);
  void begin(uint64_t id, Actions& out);

  Phase phase_ = Phase::kIdle;
  Step reached_ = Step::kNone;
  uint64_t id_ = 0;
  uint64_t next_ = 0;  // a checkpoint that was ordered while the one before it ends; 0: none
};

}  // namespace ckpt::cluster
