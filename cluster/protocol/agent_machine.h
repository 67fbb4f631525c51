// One host's part in a checkpoint over several hosts: pure states between the head and the processes of this
// host, whose own leader (job/capture/coordinator.h) waits at each step for kContinue.
//
// Owner:     cluster. Callers: the agent's loop, one thread; the explorer.
// Why no host is left standing: between kStop and kGo a timer runs whenever the head is waited for, and the
// end of the connection or the timer lets the processes go on. Why no part of a checkpoint that counts is
// taken away: once kDurable has been said, only the head's kAbort removes it.
#pragma once

#include "cluster/protocol/steps.h"

namespace ckpt::cluster {

struct AgentAction {
  enum class Kind : uint8_t {
    kBegin,     // ask the processes of this host for a checkpoint: they come to `step` or fail
    kContinue,  // they may go on to the step after the one at which they wait
    kGiveUp,    // they go on, and their part is removed
    kKeep,      // what the head has decided is not known: they go on, and their part stays
    kReached,   // tell the head
    kFailed,    // tell the head
    kSetTimer,
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
    kWaiting,  // they have come to it, and wait for the head
    kEnding,   // they were told the end of it, and have not answered yet
  };

  void ordered(uint64_t id, Order order, Actions& out);
  void came_to(Step step, Actions& out);  // the processes
  void ended(bool ok, Actions& out);      // the processes' checkpoint is over: nothing of it waits any more
  void timed_out(Actions& out);
  void lost_head(Actions& out);

  Phase phase() const { return phase_; }
  Step reached() const { return reached_; }
  uint64_t id() const { return id_; }
  uint64_t next() const { return next_; }

 private:
  void let_go(bool tell, Actions& out);
  void begin(uint64_t id, Actions& out);

  Phase phase_ = Phase::kIdle;
  Step reached_ = Step::kNone;
  uint64_t id_ = 0;
  uint64_t next_ = 0;  // ordered while the one before ends
};

}  // namespace ckpt::cluster
