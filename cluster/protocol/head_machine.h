// The head's decisions about a checkpoint over several hosts: pure states. Events go in, actions come out;
// the caller does the actions, in order.
//
// Owner:     cluster. Callers: the head's loop, one thread; the explorer in the tests.
// A checkpoint counts from the moment at which its record is durable. Before kRecord a failure on any host
// ends it for all. After kRecord only recorded() decides: hosts that are lost meanwhile do not matter, since
// all have said kDurable.
#pragma once

#include "cluster/protocol/steps.h"

namespace ckpt::cluster {

struct HeadAction {
  enum class Kind : uint8_t {
    kTell,      // send `order` to `host`
    kSetTimer,  // for the step that is awaited
    kStopTimer,
    kRecord,  // make the record durable, then call recorded()
    kSucceeded,
    kFailed,  // `host` is the one at fault; -1: none
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

  // Begins checkpoint `id`, which is larger than all before. kFailed while another is taken, or if a host is
  // missing.
  void request(uint64_t id, Actions& out);
  void reached(int host, uint64_t id, Step step, Actions& out);
  void failed(int host, uint64_t id, Actions& out);
  void lost(int host, Actions& out);  // its connection is broken: it does not come back
  void timed_out(Actions& out);
  // kRecord was done. ok false: the record is certainly not on the disk.
  void recorded(bool ok, Actions& out);

  Phase phase() const { return phase_; }
  Step awaited() const { return awaited_; }
  uint64_t id() const { return id_; }
  bool is_there(int host) const { return there_[static_cast<size_t>(host)]; }
  Step reached_by(int host) const { return reached_[static_cast<size_t>(host)]; }
  // The first host that has not come to the awaited step; -1: none.
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
