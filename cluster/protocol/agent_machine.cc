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
    // The head has given up the checkpoint before this one; its kAbort is late or lost.
    if (phase_ != Phase::kEnding) release_processes(false, out);
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
  // Only the order that follows the step of this host: a host that has released its processes meanwhile does
  // not begin again in the middle.
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

void AgentMachine::ended(Actions& out) {
  if (phase_ == Phase::kIdle) return;
  if (phase_ != Phase::kEnding) {
    // The processes gave up by themselves, and go on already.
    out.push_back({Kind::kStopTimer});
    out.push_back({Kind::kFailed, reached_, id_});
  }
  phase_ = Phase::kIdle;
  if (next_ != 0) begin(next_, out);
}

// The head's decision is not known. Before this host has said kDurable the head cannot have decided that the
// checkpoint counts; after that it may have.
void AgentMachine::release_processes(bool tell_head, Actions& out) {
  phase_ = Phase::kEnding;
  out.push_back({Kind::kStopTimer});
  out.push_back({reached_ == Step::kDurable ? Kind::kKeepPart : Kind::kGiveUp, reached_, id_});
  if (tell_head) out.push_back({Kind::kFailed, reached_, id_});
}

void AgentMachine::timed_out(Actions& out) {
  if (phase_ == Phase::kWaiting) release_processes(true, out);
}

void AgentMachine::lost_head(Actions& out) {
  next_ = 0;
  if (phase_ == Phase::kWorking || phase_ == Phase::kWaiting) release_processes(false, out);
}

}  // namespace ckpt::cluster
