// Where the time of a stop goes: one line of the log.
//
// Owner:     one Attempt. Callers: the agent; end() while threads stand.
#pragma once

#include <cstdint>

namespace ckpt {

class StopClock {
 public:
  // In this order, or left out.
  enum Part { kThreads, kMappings, kProcess, kDescriptors, kProtection, kCopies, kParts };

  // called: when the first thread was signalled. began: when the first thread that worked was.
  void begin(int64_t called_ns, int64_t began_ns) {
    called_ns_ = called_ns;
    began_ns_ = began_ns;
  }
  void end(Part part);
  int64_t began_ns() const { return began_ns_; }

  struct Faults {
    uint64_t ahead, since;  // of the stop
    uint32_t passes;
  };
  void log(int log, int64_t pause_ns, const Faults& faults) const;

 private:
  int64_t called_ns_ = 0, began_ns_ = 0;
  int64_t ends_ns_[kParts] = {};
};

}  // namespace ckpt
