// This process's side of the gate of a job that goes back (base/protocol/back_gate.h).
//
// Owner:     BackRun. Callers: the agent. The gate is memory of ours, in no image.
// Never:     uses the library's data: it is replaced meanwhile.
#pragma once

#include "base/protocol/back_gate.h"
#include "base/units.h"

namespace ckpt {

class MemberGate {
 public:
  MemberGate() = default;
  ~MemberGate();
  MemberGate(const MemberGate&) = delete;
  MemberGate& operator=(const MemberGate&) = delete;

  // Takes the descriptor. 0, or -errno.
  long open(int fd, uint32_t member, uint32_t members);
  bool is_open() const { return gate_ != nullptr; }
  AddrRange range() const;

  BackDecision decided() const { return gate_->decided(); }
  // False: it is decided already.
  bool give_up() { return gate_->decide(BackDecision::kOpen, BackDecision::kGivenUp); }
  // The job ends. Without a gate: nothing.
  void fail() {
    if (gate_ != nullptr) gate_->fail();
  }

  enum class Waited { kAll, kFailed, kNotYet };
  void come_to(uint32_t barrier) { gate_->come_to(member_, barrier); }
  // Waits at most longest_ns (below 1 s) for all others to come there. asker_is_gone: nobody else looks for
  // members that have died, so this does.
  Waited await(uint32_t barrier, bool asker_is_gone, int64_t longest_ns);

 private:
  bool somebody_died(uint32_t barrier) const;

  BackGate* gate_ = nullptr;
  int fd_ = -1;
  uint32_t member_ = 0;
};

}  // namespace ckpt
