// A thread of ours for which the program's threads wait goes before them to a processor.
//
// Where more threads compute than there are processors, the agent is one of many: with 100 on two processors a stop took 360 ms, with 1,000 it
// had no end (docs/findings.md). So the agent takes nice -20 while it arms and stops, and the thread that serves faults always.
// That is allowed to root (CAP_SYS_NICE), and up to RLIMIT_NICE; for others nothing changes.
//
// Owner:     who begins it: an object of the thread that calls, which is one of ours.
// Never:     kept while memory is copied and written: that is done beside the program, not before it.
#pragma once

namespace ckpt {

class Urgency {
 public:
  // By the same thread. A process or thread that it makes meanwhile begins with nice 0.
  void begin();
  // Also by a forked child, for itself.
  void end();
  // In memory of an image: its thread is gone.
  void forget() { raised_ = false; }

 private:
  bool raised_ = false;
  int before_ = 0;  // nice
};

class ScopedUrgency {
 public:
  // is_needed false: nothing is done.
  explicit ScopedUrgency(bool is_needed = true) {
    if (is_needed) urgency_.begin();
  }
  ~ScopedUrgency() { urgency_.end(); }
  ScopedUrgency(const ScopedUrgency&) = delete;
  ScopedUrgency& operator=(const ScopedUrgency&) = delete;

 private:
  Urgency urgency_;
};

}  // namespace ckpt
