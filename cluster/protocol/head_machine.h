// The one that decides: pure states. Events go in, actions come out; whoever calls does them, in order.
//
// Owner:     cluster. Callers: the head's loop, one thread; the explorer.
// A checkpoint counts from the moment at which kRecord has been done. Until then anything that goes wrong
// anywhere ends it for all; after it nothing does.
#pragma once

#include "cluster/protocol/steps.h"

namespace ckpt::cluster {

struct HeadAction {
  enum class Kind : uint8_t {
    kTell,      // order to host
    kSetTimer,  // for the step that is awaited
    kStopTimer,
    kRecord,  // make the decision durable: then recorded()
    kSucceeded,
    kFailed,  // `why` says which host, or -1
  } kind;
  Order order = Order::kAbort;
  int host = -1;
  uint64_t id = 0;
};

class HeadMachine {
 public:
  using Actions = std::vector<HeadAction>;

  enum class Phase : uint8_t { kIdle, kAwaiting, kRecording };

  explicit HeadMachine(int hosts)
      : reached_(static_cast<size_t>(hosts), Step::kNone), there_(reached_.size(), true) {}

  // Of checkpoint `id`, which is larger than all before. While another is taken, or where a host is missing:
  // kFailed.
  void request(uint64_t id, Actions& out);
  void reached(int host, uint64_t id, Step step, Actions& out);
  void failed(int host, uint64_t id, Actions& out);
  void lost(int host, Actions& out);  // its connection is broken: it does not come back
  void timed_out(Actions& out);
  // ok false: it is certain that the record is not there.
  void recorded(bool ok, Actions& out);

  Phase phase() const { return phase_; }
  Step awaited() const { return awaited_; }
  uint64_t id() const { return id_; }
  bool is_there(int host) const { return there_[static_cast<size_t>(host)]; }
  Step reached_by(int host) const { return reached_[static_cast<size_t>(host)]; }
  // The first host that has not come as far as is awaited, -1: none.
  int slowest() const;

 private:
  void tell_all(Order order, Actions& out) const;
  void give_up(int host, Actions& out);

  Phase phase_ = Phase::kIdle;
  Step awaited_ = Step::kNone;
  uint64_t id_ = 0;
  std::vector<Step> reached_;
  std::vector<bool> there_;
};

}  // namespace ckpt::cluster
