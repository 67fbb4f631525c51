#include "cluster/protocol/head_machine.h"

namespace ckpt::cluster {

const char* name_of(Step step) {
  constexpr const char* kNames[] = {"none", "prepared", "standing", "drained", "sampled", "durable"};
  return kNames[static_cast<uint8_t>(step)];
}

const char* name_of(Order order) {
  constexpr const char* kNames[] = {"prepare", "stop", "drain", "sample", "go", "commit", "abort"};
  return kNames[static_cast<uint8_t>(order)];
}

void HeadMachine::tell_all(Order order, Actions& out) const {
  for (size_t h = 0; h < there_.size(); ++h) {
    if (there_[h]) out.push_back({HeadAction::Kind::kTell, order, static_cast<int>(h), id_});
  }
}

int HeadMachine::slowest() const {
  for (size_t h = 0; h < there_.size(); ++h) {
    if (!there_[h] || reached_[h] < awaited_) return static_cast<int>(h);
  }
  return -1;
}

void HeadMachine::request(uint64_t id, Actions& out) {
  if (phase_ != Phase::kIdle) {
    out.push_back({HeadAction::Kind::kFailed, Order::kAbort, -1, id});
    return;
  }
  for (size_t h = 0; h < there_.size(); ++h) {
    if (there_[h]) continue;
    out.push_back({HeadAction::Kind::kFailed, Order::kAbort, static_cast<int>(h), id});
    return;
  }
  id_ = id;
  phase_ = Phase::kAwaiting;
  awaited_ = Step::kPrepared;
  for (Step& step : reached_) step = Step::kNone;
  tell_all(Order::kPrepare, out);
  out.push_back({HeadAction::Kind::kSetTimer, Order::kPrepare, -1, id_});
}

void HeadMachine::reached(int host, uint64_t id, Step step, Actions& out) {
  // A message about an earlier checkpoint, which was given up, says nothing about this one.
  if (phase_ != Phase::kAwaiting || id != id_) return;
  if (step != awaited_) return give_up(host, out);
  reached_[static_cast<size_t>(host)] = step;
  if (slowest() >= 0) return;
  if (awaited_ == Step::kDurable) {
    phase_ = Phase::kRecording;
    out.push_back({HeadAction::Kind::kStopTimer, Order::kCommit, -1, id_});
    out.push_back({HeadAction::Kind::kRecord, Order::kCommit, -1, id_});
    return;
  }
  awaited_ = next_step(awaited_);
  tell_all(order_to(awaited_), out);
  out.push_back({HeadAction::Kind::kSetTimer, order_to(awaited_), -1, id_});
}

void HeadMachine::give_up(int host, Actions& out) {
  phase_ = Phase::kIdle;
  out.push_back({HeadAction::Kind::kStopTimer, Order::kAbort, -1, id_});
  tell_all(Order::kAbort, out);
  out.push_back({HeadAction::Kind::kFailed, Order::kAbort, host, id_});
}

void HeadMachine::failed(int host, uint64_t id, Actions& out) {
  if (phase_ == Phase::kAwaiting && id == id_) give_up(host, out);
}

void HeadMachine::lost(int host, Actions& out) {
  there_[static_cast<size_t>(host)] = false;
  if (phase_ == Phase::kAwaiting) give_up(host, out);
}

void HeadMachine::timed_out(Actions& out) {
  if (phase_ == Phase::kAwaiting) give_up(slowest(), out);
}

void HeadMachine::recorded(bool ok, Actions& out) {
  if (phase_ != Phase::kRecording) return;
  phase_ = Phase::kIdle;
  tell_all(ok ? Order::kCommit : Order::kAbort, out);
  out.push_back({ok ? HeadAction::Kind::kSucceeded : HeadAction::Kind::kFailed, Order::kCommit, -1, id_});
}

}  // namespace ckpt::cluster
