#include "cluster/protocol/agent_machine.h"

namespace ckpt::cluster {

using Kind = AgentAction::Kind;

void AgentMachine::begin(uint64_t id, Actions& out) {
  id_ = id;
  next_ = 0;
  phase_ = Phase::kWorking;
  reached_ = Step::kNone;
  out.push_back({Kind::kBegin, Step::kPrepared, id});
}

void AgentMachine::ordered(uint64_t id, Order order, Actions& out) {
  if (order == Order::kPrepare) {
    if (phase_ == Phase::kIdle) return begin(id, out);
    // The head has given up the one before, and its word of that is late or lost.
    if (phase_ != Phase::kEnding) let_go(false, out);
    next_ = id;
    return;
  }
  if (id == next_ && order == Order::kAbort) {
    next_ = 0;
    return;
  }
  if (id != id_) return;
  if (order == Order::kAbort) {
    if (phase_ != Phase::kWorking && phase_ != Phase::kWaiting) return;
    phase_ = Phase::kEnding;
    out.push_back({Kind::kStopTimer});
    out.push_back({Kind::kGiveUp, reached_, id_});
    return;
  }
  // Only what follows from where this host is: whoever has let go in the meantime does not begin in the
  // middle.
  if (phase_ != Phase::kWaiting) return;
  if (order == Order::kCommit) {
    if (reached_ != Step::kDurable) return;
    phase_ = Phase::kEnding;
  } else {
    if (reached_ == Step::kDurable || order != order_to(next_step(reached_))) return;
    phase_ = Phase::kWorking;
  }
  out.push_back({Kind::kStopTimer});
  out.push_back({Kind::kContinue, reached_, id_});
}

void AgentMachine::came_to(Step step, Actions& out) {
  if (phase_ != Phase::kWorking || step != next_step(reached_)) return;
  reached_ = step;
  phase_ = Phase::kWaiting;
  out.push_back({Kind::kReached, step, id_});
  out.push_back({Kind::kSetTimer, step, id_});
}

void AgentMachine::ended(bool ok, Actions& out) {
  if (phase_ == Phase::kIdle) return;
  if (phase_ != Phase::kEnding) {
    // By themselves: they go on already.
    out.push_back({Kind::kStopTimer});
    out.push_back({Kind::kFailed, reached_, id_});
  }
  (void)ok;
  phase_ = Phase::kIdle;
  if (next_ != 0) begin(next_, out);
}

// What the head has decided is not known, and only before kDurable is it known that it has decided nothing.
void AgentMachine::let_go(bool tell, Actions& out) {
  phase_ = Phase::kEnding;
  out.push_back({Kind::kStopTimer});
  out.push_back({reached_ == Step::kDurable ? Kind::kKeep : Kind::kGiveUp, reached_, id_});
  if (tell) out.push_back({Kind::kFailed, reached_, id_});
}

void AgentMachine::timed_out(Actions& out) {
  if (phase_ == Phase::kWaiting) let_go(true, out);
}

void AgentMachine::lost_head(Actions& out) {
  next_ = 0;
  if (phase_ == Phase::kWorking || phase_ == Phase::kWaiting) let_go(false, out);
}

}  // namespace ckpt::cluster
